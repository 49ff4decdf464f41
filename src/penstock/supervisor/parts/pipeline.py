"""The pipeline: Spark, which turns streams into their views.

It runs where `parts` names it: a gateway alone needs no Java.
"""

from __future__ import annotations

import sys

from penstock.config import Config
from penstock.supervisor.part import Part
from penstock.supervisor.probes import HttpProbe, Probe


def _command(config: Config) -> list[str]:
    named = ["--config", str(config.file)] if config.file else []
    return [sys.executable, "-m", "penstock", *named, "views", "run"]


def _ready(config: Config) -> Probe | None:
    # Without a port that is known beforehand nobody can ask.
    if config.monitor.enabled and config.pipeline.monitor_port:
        return HttpProbe(config.monitor.host, config.pipeline.monitor_port)
    return None


part = Part(
    name="pipeline",
    command=_command,
    ready=_ready,
    address=lambda config: config.pipeline.master,
    needs=("java",),
)
