"""`kafka`: the cluster that holds the event log and the views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.config.quantities import Duration
from penstock.config.secrets import KeyFile, Secret
from penstock.config.settings import Conflict, DataPath, Kind, Port, Settings, setting, wrong

PORT_LIMIT = 65535


def _check_bootstrap(text: str) -> str:
    addresses = [part.strip() for part in text.split(",")]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not port.isdecimal() or not 0 < int(port) <= PORT_LIMIT:
            raise wrong(
                f"{address!r} is no address of a broker",
                "write HOST:PORT, several with commas between",
            )
    return ",".join(addresses)


Bootstrap = Annotated[
    str,
    Field(min_length=1, max_length=4000),
    AfterValidator(_check_bootstrap),
    Kind("addresses", "HOST:PORT, several with commas between"),
]


class KafkaSettings(Settings):
    """The Kafka cluster: where it is, who Penstock is there, and how topics are made."""

    bootstrap: Bootstrap | None = setting(
        None,
        "The brokers to begin with; without them no Kafka is used.",
        examples=("kafka-1:9092,kafka-2:9092",),
    )
    security: Literal["sasl_ssl", "sasl_plaintext"] = setting(
        "sasl_ssl",
        "Whether connections are encrypted; sasl_plaintext is for brokers on this machine.",
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256"] = setting(
        "SCRAM-SHA-512", "How users log in."
    )
    user: Annotated[str, Field(min_length=1, max_length=256)] = setting(
        "admin", "The user that Penstock is; a super user, who may change users and rules."
    )
    password: Secret | None = setting(
        None,
        "The password of that user.",
        examples=("{file: keys/kafka-password}", "{env: KAFKA_PASSWORD}"),
    )
    ca: DataPath | None = setting(
        None,
        "The certificates that the brokers' are checked against; the system's if none.",
        examples=("certificates/kafka-ca.pem",),
    )
    key: KeyFile = setting(
        "keys/kafka-credentials.key",
        "The file of the key that seals the users' credentials in the store; created if missing.",
    )
    passwords: DataPath = setting(
        "keys/kafka-users", "The folder where passwords that Penstock makes up are written."
    )
    iterations: Annotated[int, Field(ge=4096, le=16384)] = setting(
        8192, "How often a password is hashed; Kafka takes 4096 to 16384."
    )
    partitions: Annotated[int, Field(ge=1, le=10_000)] = setting(
        1, "The partitions of a topic that Penstock makes."
    )
    replication: Annotated[int, Field(ge=0, le=100)] = setting(
        0, "The copies of each partition; 0 leaves it to the cluster."
    )
    timeout: Annotated[Duration, Field(ge=1, le=600)] = setting(
        "30s", "How long the cluster may take to answer."
    )
    prune: bool = setting(
        default=False,
        description="Whether rules at the cluster for users that Penstock does not keep are "
        "removed; else they are shown.",
    )
    monitor_port: Port = setting(
        9467,
        "Where `penstock rbac watch` answers /metrics, /healthz and /readyz, at the host of "
        "`monitor`; 0 takes a free one.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what is missing to log in, and what has no use without encryption."""
        if self.bootstrap is not None and self.password is None:
            yield Conflict(
                "password", "to log in takes a password", "set it to {file: PATH} or {env: NAME}"
            )
        if self.security == "sasl_plaintext" and self.ca is not None:
            yield Conflict("ca", "nothing is encrypted", "leave ca out, or set security: sasl_ssl")
