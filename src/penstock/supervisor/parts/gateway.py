"""The MQTT gateway, in front of the broker."""

from __future__ import annotations

import sys

from penstock.config import Config
from penstock.supervisor.part import Part
from penstock.supervisor.probes import HttpProbe, Probe, TcpProbe


def _command(config: Config) -> list[str]:
    named = ["--config", str(config.file)] if config.file else []
    return [sys.executable, "-m", "penstock", *named, "gateway"]


def _ready(config: Config) -> Probe:
    if config.monitor.enabled and config.gateway.monitor_port:
        return HttpProbe(config.monitor.host, config.gateway.monitor_port)
    listener = next(iter(config.gateway.listeners.values()))
    return TcpProbe(listener.host, listener.port)


def _address(config: Config) -> str:
    return ", ".join(
        f"{listener.transport} {listener.host}:{listener.port}"
        for listener in config.gateway.listeners.values()
    )


part = Part(name="gateway", command=_command, after=("broker",), ready=_ready, address=_address)
