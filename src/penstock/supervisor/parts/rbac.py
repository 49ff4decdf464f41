"""Users and roles at Kafka: holds the cluster to the definitions.

It runs where `parts` names it: without a Kafka there is nothing to hold.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from penstock.config import Config
from penstock.errors import UsageError
from penstock.supervisor.part import Part
from penstock.supervisor.probes import HttpProbe, Probe


def _choose(config: Config) -> Mapping[str, str]:
    if config.kafka.bootstrap is None:
        raise UsageError(
            "the part 'rbac' holds Kafka to the roles, and kafka.bootstrap is not set",
            fix="set kafka.bootstrap, or remove 'rbac' from parts",
        )
    return {}


def _command(config: Config) -> list[str]:
    named = ["--config", str(config.file)] if config.file else []
    return [sys.executable, "-m", "penstock", *named, "rbac", "watch"]


def _ready(config: Config) -> Probe | None:
    # Without a port that is known beforehand nobody can ask.
    if config.monitor.enabled and config.kafka.monitor_port:
        return HttpProbe(config.monitor.host, config.kafka.monitor_port)
    return None


part = Part(
    name="rbac",
    command=_command,
    ready=_ready,
    address=lambda config: config.kafka.bootstrap or "",
    choose=_choose,
)
