"""The embedded broker: Mosquitto on loopback, its state in the data folder."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from penstock.components.mosquitto import broker_command, generate_password
from penstock.config import Config
from penstock.config.environment import variable_of
from penstock.errors import UnavailableError, UsageError
from penstock.supervisor.part import Part
from penstock.supervisor.probes import TcpProbe

# Below the ports that systems lend to outgoing connections: such a loan would keep the
# broker from coming back to its port after a restart.
PORTS = range(20_000, 32_000)
TRIES = 100


def _choose(config: Config) -> Mapping[str, str]:
    """Choose the port once, so that the broker keeps it and the other parts know it."""
    if config.broker.mode == "external":
        raise UsageError(
            "the part 'broker' is the embedded broker, and broker.mode is external",
            fix="remove 'broker' from parts, or set broker.mode to embedded",
        )
    if config.broker.port:
        return {}
    for port in random.sample(PORTS, TRIES):
        with socket.socket() as trial:
            try:
                trial.bind((config.broker.host, port))
            except OSError:
                continue
            return {variable_of(("broker", "port")): str(port)}
    raise UnavailableError("no port is free for the broker", fix="set broker.port")


def _command(config: Config) -> list[str]:
    key = config.broker.key
    key.read_or_create(generate_password)
    return broker_command(config.data / "broker", config.broker.port, password=key.read_text())


part = Part(
    name="broker",
    command=_command,
    ready=lambda config: TcpProbe(config.broker.host, config.broker.port),
    address=lambda config: f"{config.broker.host}:{config.broker.port}",
    needs=("mosquitto",),
    choose=_choose,
)
