"""The parts there are: broker, gateway, pipeline, rbac, rights, server.

Rules that hold here:
- A new part is a new entry of `PARTS`; nothing else changes.
- A part other than the embedded broker runs `penstock VERB` with the same settings.
- The pipeline, rbac, rights and the server run only where `parts` names them: a gateway alone
  needs neither Java nor Kafka, and tells nobody anything.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping

from penstock.components.mosquitto import broker_command, generate_password, make_private_folder
from penstock.config import Config
from penstock.errors import InvalidError, Problem, UsageError
from penstock.supervisor.part import HttpProbe, Part, Probe, SocketProbe, TcpProbe


def _require_embedded(config: Config) -> Mapping[str, str]:
    if config.broker.mode == "external":
        raise UsageError(
            "the part 'broker' is the embedded broker, and broker.mode is external",
            fix="remove 'broker' from parts, or set broker.mode to embedded",
        )
    return {}


def _broker_command(config: Config) -> list[str]:
    key, folder, listener = config.broker.key, config.data / "broker", config.broker.socket
    key.read_or_create(generate_password)
    command = broker_command(folder, listener.name, password=key.read_text())
    folder.chmod(0o700)
    make_private_folder(listener.parent)
    return command


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


def _server_probe(config: Config) -> Probe:
    listener = next(iter(config.server.listeners.values()))
    monitored = _monitor_probe(config, config.server.monitor_port)
    return monitored or TcpProbe(listener.host, listener.port)


def _server_address(config: Config) -> str:
    return ", ".join(
        f"{listener.protocol} {listener.host}:{listener.port}"
        for listener in config.server.listeners.values()
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
    ready=lambda config: SocketProbe(config.broker.socket),
    address=lambda config: str(config.broker.socket),
    needs=("mosquitto",),
    folder=lambda config: config.broker.socket.parent,
    choose=_require_embedded,
)
"""The embedded broker: Mosquitto on a socket, its state in the data folder."""

GATEWAY = Part(
    name="gateway",
    command=_verb("gateway"),
    after=("broker",),
    ready=_gateway_probe,
    address=_gateway_address,
    reloads=True,
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

RIGHTS = Part(
    name="rights",
    command=_verb("requests", "work"),
    ready=lambda config: _monitor_probe(config, config.rights.monitor_port),
)
"""The worker that tells services of privacy requests, and follows them up."""

SERVER = Part(
    name="server",
    command=_verb("server", "run"),
    ready=_server_probe,
    address=_server_address,
    reloads=True,
)
"""The server of privacy requests, by REST and gRPC."""

PARTS: dict[str, Part] = {
    part.name: part for part in (BROKER, GATEWAY, PIPELINE, RBAC, RIGHTS, SERVER)
}


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
