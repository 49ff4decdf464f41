"""The parts there are: broker, gateway, pipeline, rbac.

Rules that hold here:
- A new part is a new entry of `PARTS`; nothing else changes.
- A part other than the embedded broker runs `penstock VERB` with the same settings.
- The pipeline and rbac run only where `parts` names them: a gateway alone needs neither Java
  nor Kafka.
"""

from __future__ import annotations

import difflib
import random
import socket
import sys
from collections.abc import Callable, Mapping

from penstock.components.mosquitto import broker_command, generate_password
from penstock.config import Config
from penstock.config.environment import variable_of
from penstock.errors import InvalidError, Problem, UnavailableError, UsageError
from penstock.supervisor.part import HttpProbe, Part, Probe, TcpProbe

# Below the ports that systems lend to outgoing connections: such a loan would keep the
# broker from coming back to its port after a restart.
BROKER_PORTS = range(20_000, 32_000)
PORT_TRIES = 100


def _choose_broker_port(config: Config) -> Mapping[str, str]:
    """Choose the port once, so that the broker keeps it and the other parts know it."""
    if config.broker.mode == "external":
        raise UsageError(
            "the part 'broker' is the embedded broker, and broker.mode is external",
            fix="remove 'broker' from parts, or set broker.mode to embedded",
        )
    if config.broker.port:
        return {}
    for port in random.sample(BROKER_PORTS, PORT_TRIES):
        with socket.socket() as trial:
            try:
                trial.bind((config.broker.host, port))
            except OSError:
                continue
            return {variable_of(("broker", "port")): str(port)}
    raise UnavailableError("no port is free for the broker", fix="set broker.port")


def _broker_command(config: Config) -> list[str]:
    key = config.broker.key
    key.read_or_create(generate_password)
    return broker_command(config.data / "broker", config.broker.port, password=key.read_text())


def _verb(*verb: str) -> Callable[[Config], list[str]]:
    """Return what runs a verb of Penstock with the settings of this installation."""

    def command(config: Config) -> list[str]:
        named = ["--config", str(config.file)] if config.file else []
        return [sys.executable, "-m", "penstock", *named, *verb]

    return command


def _monitor_probe(config: Config, port: int) -> Probe | None:
    # Without a port that is known beforehand nobody can ask.
    return HttpProbe(config.monitor.host, port) if config.monitor.enabled and port else None


def _gateway_probe(config: Config) -> Probe:
    listener = next(iter(config.gateway.listeners.values()))
    monitored = _monitor_probe(config, config.gateway.monitor_port)
    return monitored or TcpProbe(listener.host, listener.port)


def _gateway_address(config: Config) -> str:
    return ", ".join(
        f"{listener.transport} {listener.host}:{listener.port}"
        for listener in config.gateway.listeners.values()
    )


def _require_kafka(config: Config) -> Mapping[str, str]:
    if config.kafka.bootstrap is None:
        raise UsageError(
            "the part 'rbac' holds Kafka to the roles, and kafka.bootstrap is not set",
            fix="set kafka.bootstrap, or remove 'rbac' from parts",
        )
    return {}


BROKER = Part(
    name="broker",
    command=_broker_command,
    ready=lambda config: TcpProbe(config.broker.host, config.broker.port),
    address=lambda config: f"{config.broker.host}:{config.broker.port}",
    needs=("mosquitto",),
    choose=_choose_broker_port,
)
"""The embedded broker: Mosquitto on loopback, its state in the data folder."""

GATEWAY = Part(
    name="gateway",
    command=_verb("gateway"),
    after=("broker",),
    ready=_gateway_probe,
    address=_gateway_address,
)
"""The MQTT gateway, in front of the broker."""

PIPELINE = Part(
    name="pipeline",
    command=_verb("views", "run"),
    ready=lambda config: _monitor_probe(config, config.pipeline.monitor_port),
    address=lambda config: config.pipeline.master,
    needs=("java",),
)
"""Spark, which turns streams into their views."""

RBAC = Part(
    name="rbac",
    command=_verb("rbac", "watch"),
    ready=lambda config: _monitor_probe(config, config.kafka.monitor_port),
    address=lambda config: config.kafka.bootstrap or "",
    choose=_require_kafka,
)
"""The reconciler of Kafka's users and ACLs with the definitions."""

PARTS: dict[str, Part] = {part.name: part for part in (BROKER, GATEWAY, PIPELINE, RBAC)}


def configured_parts(config: Config) -> list[Part]:
    """Return the parts that the settings name; raise where there are none or unknown ones."""
    problems = [
        Problem(config.place("parts", index), f"there is no part {name!r}", _hint(name))
        for index, name in enumerate(config.parts)
        if name not in PARTS
    ]
    if problems:
        raise InvalidError(str(config.file or "parts"), problems)
    if not config.parts:
        raise UsageError("the settings name no part to run", fix="add one to `parts`")
    return [PARTS[name] for name in config.parts]


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, PARTS, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(PARTS)}"
