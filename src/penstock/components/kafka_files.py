"""The files that a Kafka node and Kafka's own tools read: settings, logging, credentials."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HOST = "127.0.0.1"
ADMIN = "admin"
NODES_USER = "node"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """One node: its number and its ports for clients, other nodes and controllers."""

    number: int
    client: int
    nodes: int
    controller: int

    def as_data(self) -> dict[str, int]:
        """Return it as JSON can hold it."""
        return asdict(self)


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first moment."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as target:
        target.write(text)


def write_logging(file: Path, level: str) -> None:
    """Write the settings of log4j: everything to standard output, a line each."""
    lines = [
        "status=error",
        "appender.out.type=Console",
        "appender.out.name=out",
        "appender.out.layout.type=PatternLayout",
        "appender.out.layout.pattern=[%d] %p %m (%c)%n%throwable",
        f"rootLogger.level={level}",
        "rootLogger.appenderRef.out.ref=out",
        # One line for each group and partition is too much for a node that lives shortly.
        "logger.groups.name=org.apache.kafka.coordinator",
        "logger.groups.level=WARN",
    ]
    file.write_text("\n".join(lines) + "\n")


def client_properties(bootstrap: str, user: str, password: str) -> str:
    """Return the settings of one user for Kafka's own tools."""
    return _write(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{_SCRAM} username="{user}" password="{password}";',
        }
    )


def server_properties(
    node: KafkaNode,
    nodes: Sequence[KafkaNode],
    *,
    data: Path,
    password: str,
    reauthentication: float,
) -> str:
    """Return the settings of one node."""
    copies = min(3, len(nodes))
    listeners = {"CLIENT": node.client, "NODES": node.nodes, "CONTROLLER": node.controller}
    login = (
        f'{_PLAIN} username="{NODES_USER}" password="{password}" user_{NODES_USER}="{password}";'
    )
    return _write(
        {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "controller.quorum.voters": ",".join(
                f"{other.number}@{HOST}:{other.controller}" for other in nodes
            ),
            "log.dirs": data,
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": f"CLIENT://{HOST}:{node.client},NODES://{HOST}:{node.nodes}",
            "listener.security.protocol.map": ",".join(
                f"{name}:SASL_PLAINTEXT" for name in listeners
            ),
            "inter.broker.listener.name": "NODES",
            "controller.listener.names": "CONTROLLER",
            # The controllers need a password that is there before the cluster knows users.
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.nodes.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.nodes.plain.sasl.jaas.config": login,
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": login,
            "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
            "listener.name.client.scram-sha-512.sasl.jaas.config": f"{_SCRAM};",
            "listener.name.client.scram-sha-256.sasl.jaas.config": f"{_SCRAM};",
            # A user who is gone at the cluster loses connections that are open, too.
            "listener.name.client.connections.max.reauth.ms": int(reauthentication * 1000),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMIN};User:{NODES_USER}",
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": max(1, copies - 1),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": max(1, copies - 1),
            # A node that is gone is noticed sooner than the nine seconds of a large cluster.
            "broker.heartbeat.interval.ms": 1000,
            "broker.session.timeout.ms": 5000,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        }
    )


def _write(properties: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
