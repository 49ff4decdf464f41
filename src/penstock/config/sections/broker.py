"""`broker`: the MQTT broker behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.quantities import Duration
from penstock.config.secrets import KeyFile, Secret, SecretFile
from penstock.config.settings import Conflict, DataPath, Host, Port, Settings, setting

LOOPBACK = "127.0.0.1"


class BrokerTlsSettings(Settings):
    """TLS towards an external broker."""

    enabled: bool = setting(default=False, description="Whether the connection is encrypted.")
    ca: DataPath | None = setting(
        None,
        "The certificates that the broker's is checked against; the system's if none.",
        examples=("certificates/broker-ca.pem",),
    )
    certificate: DataPath | None = setting(
        None,
        "Our own certificate, where the broker asks for one.",
        examples=("certificates/gateway.pem",),
    )
    key: SecretFile | None = setting(
        None,
        "The file of the key of our own certificate.",
        examples=("keys/gateway.key",),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a certificate without its key, and the reverse."""
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            yield Conflict(missing, "certificate and key go together", f"set {missing} as well")


class BrokerSettings(Settings):
    """The MQTT 5 broker that the gateway stands in front of."""

    mode: Literal["embedded", "external"] = setting(
        "embedded",
        "Mosquitto as a child process on loopback, or a broker that runs elsewhere.",
    )
    host: Host = setting(LOOPBACK, "The host of the broker.")
    port: Port = setting(0, "The port of the broker; 0 lets the embedded one take a free port.")
    username: Annotated[str, Field(min_length=1, max_length=1024)] | None = setting(
        None,
        "The user that the gateway is at an external broker.",
        examples=("penstock",),
    )
    password: Secret | None = setting(
        None,
        "The password of that user.",
        examples=(
            "{file: keys/broker-password}",
            "{env: BROKER_PASSWORD}",
        ),
    )
    key: KeyFile = setting(
        "keys/broker.key",
        "The file of the password that keeps others on this machine out of the embedded "
        "broker; created if missing.",
    )
    keep_alive: Annotated[Duration, Field(ge=2, le=3600)] = setting(
        "30s", "How long the connection of a client to the broker may be silent."
    )
    connect_timeout: Annotated[Duration, Field(gt=0, le=300)] = setting(
        "5s", "How long the broker may take to accept a client."
    )
    tls: BrokerTlsSettings = Field(default_factory=BrokerTlsSettings)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what fits only the other mode."""
        if self.mode == "external":
            if self.port == 0:
                yield Conflict("port", "an external broker has a port", "set it, such as 1883")
            if self.password is not None and self.username is None:
                yield Conflict("password", "a password needs a user", "set username as well")
            return
        if self.host != LOOPBACK:
            yield Conflict(
                "host",
                f"the embedded broker listens on {LOOPBACK} only",
                "leave host out, or set mode to external",
            )
        for name in ("username", "password"):
            if getattr(self, name) is not None:
                yield Conflict(
                    name,
                    "the embedded broker has one user, the gateway",
                    f"leave {name} out, or set mode to external",
                )
        if self.tls.enabled:
            yield Conflict(
                "tls", "the embedded broker speaks no TLS", "leave tls out, or set mode to external"
            )
