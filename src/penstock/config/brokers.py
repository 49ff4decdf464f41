"""The brokers behind Penstock: `broker`, for MQTT, and `kafka`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from penstock.config.secrets import KeyFile, Secret, SecretFile
from penstock.config.settings import (
    Conflict,
    DataPath,
    Duration,
    Host,
    InputFile,
    Port,
    Settings,
    TypeLabel,
    is_loopback,
    setting,
    wrong,
)

if TYPE_CHECKING:
    import ssl


def _check_socket(path: Path) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", path.name):
        raise wrong(
            f"{path.name!r} is not a name for a socket",
            "use at most 80 letters, digits, dots, dashes and underscores",
        )
    return path


SocketPath = Annotated[
    DataPath,
    AfterValidator(_check_socket),
    TypeLabel("a path", "the last part has letters, digits, dots, dashes and underscores"),
]

LOOPBACK = "127.0.0.1"
PORT_LIMIT = 65535


class BrokerTlsSettings(Settings):
    """TLS towards an external broker."""

    enabled: bool = setting(default=False, description="Whether the connection is encrypted.")
    ca: InputFile | None = setting(
        None,
        "The certificates that the broker's is checked against; the system's if none.",
        examples=("certificates/broker-ca.pem",),
    )
    certificate: InputFile | None = setting(
        None,
        "Our own certificate, where the broker asks for one.",
        examples=("certificates/gateway.pem",),
    )
    key: SecretFile | None = setting(
        None,
        "The file of the key of our own certificate.",
        examples=("keys/gateway.key",),
    )

    def make_context(self) -> ssl.SSLContext:
        """Make the context of connections to the broker; its certificate is always verified."""
        import ssl  # noqa: PLC0415 - for those who connect

        context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None and self.key is not None:
            context.load_cert_chain(str(self.certificate), str(self.key.path))
        return context

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a certificate without its key, and the reverse."""
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            yield Conflict(missing, "certificate and key go together", f"set {missing} as well")


class BrokerSettings(Settings):
    """The MQTT 5 broker that the gateway stands in front of."""

    mode: Literal["embedded", "external"] = setting(
        "embedded",
        "Mosquitto as a child process on a socket, or a broker that runs elsewhere.",
    )
    socket: SocketPath = setting(
        "broker/mosquitto.sock",
        "The socket of the embedded broker, in a folder that nobody else may enter (mode 0700).",
    )
    host: Host = setting(LOOPBACK, "The host of an external broker.")
    port: Port = setting(0, "The port of an external broker.")
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
        for name, unset in (("host", LOOPBACK), ("port", 0)):
            if getattr(self, name) != unset:
                yield Conflict(
                    name,
                    "the embedded broker listens on a socket, not on a port",
                    f"leave {name} out, or set mode to external",
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


def _check_bootstrap(text: str) -> str:
    addresses = [part.strip() for part in text.split(",")]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not port.isdecimal() or not 0 < int(port) <= PORT_LIMIT:
            raise wrong(
                f"{address!r} is not an address of a broker",
                "write HOST:PORT, several with commas between",
            )
    return ",".join(addresses)


Bootstrap = Annotated[
    str,
    Field(min_length=1, max_length=4000),
    AfterValidator(_check_bootstrap),
    TypeLabel("addresses", "HOST:PORT, several with commas between"),
]


ScramMechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256"]
"""Ways to log in by which the cluster itself keeps passwords."""


class KafkaTokenSettings(Settings):
    """Where Penstock gets its tokens for Kafka, with `kafka.mechanism: OAUTHBEARER`."""

    url: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=2000)] | None = setting(
        None,
        "The token endpoint of the log-in service, asked by client credentials; http only on "
        "this machine.",
        examples=("https://login.example/realms/ward/protocol/openid-connect/token",),
    )
    client: Annotated[str, Field(min_length=1, max_length=256)] = setting(
        "penstock", "The client that Penstock is there."
    )
    secret: Secret | None = setting(
        None,
        "The secret of that client.",
        examples=("{file: keys/kafka-client-secret}", "{env: KAFKA_CLIENT_SECRET}"),
    )
    scope: Annotated[str, Field(min_length=1, max_length=1024)] | None = setting(
        None, "The scope that tokens are asked for, if any.", examples=("kafka",)
    )
    ca: InputFile | None = setting(
        None,
        "The certificates that the service's is checked against; the system's if none.",
        examples=("certificates/login-ca.pem",),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a secret that would travel in clear."""
        in_clear = self.url is not None and self.url.startswith("http://")
        if in_clear and not is_loopback(urlsplit(str(self.url)).hostname or ""):
            yield Conflict("url", "others on the network could read the secret", "use https")


class KafkaRegistrySettings(Settings):
    """The schema registry that topics of views in Avro have their schemas in."""

    url: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=2000)] | None = setting(
        None, "Where it is.", examples=("https://registry.example:8081",)
    )
    user: Annotated[str, Field(min_length=1, max_length=256)] | None = setting(
        None, "The user that Penstock is there, if it asks.", examples=("penstock",)
    )
    password: Secret | None = setting(
        None,
        "The password of that user.",
        examples=("{file: keys/registry-password}", "{env: REGISTRY_PASSWORD}"),
    )
    ca: InputFile | None = setting(
        None,
        "The certificates that the registry's is checked against; the system's if none.",
        examples=("certificates/registry-ca.pem",),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a user without password, and a password that would travel in clear."""
        if (self.user is None) != (self.password is None):
            name = "password" if self.password is None else "user"
            yield Conflict(name, "user and password go together", f"set {name} as well")
        in_clear = self.url is not None and self.url.startswith("http://")
        if in_clear and self.password and not is_loopback(urlsplit(str(self.url)).hostname or ""):
            yield Conflict("url", "others on the network could read the password", "use https")


class KafkaUserLoginSettings(Settings):
    """How users log in at Kafka, where that differs from how Penstock does."""

    bootstrap: Bootstrap | None = setting(
        None,
        "The brokers to begin with, on a listener where users log in with a password; "
        "`kafka.bootstrap` if none.",
        examples=("kafka-1:9094,kafka-2:9094",),
    )
    security: Literal["sasl_ssl", "sasl_plaintext"] | None = setting(
        None,
        "Whether these connections are encrypted; as Penstock's own if left out.",
        examples=("sasl_ssl",),
    )
    mechanism: ScramMechanism | None = setting(
        None,
        "How users log in, and what the cluster keeps of their passwords; as Penstock does where "
        "that is SCRAM, else SCRAM-SHA-512.",
        examples=("SCRAM-SHA-512",),
    )


class KafkaSettings(Settings):
    """The Kafka cluster: where it is, who Penstock is there, and how topics are made."""

    bootstrap: Bootstrap | None = setting(
        None,
        "The brokers to begin with; without them no Kafka is used.",
        examples=("kafka-1:9092,kafka-2:9092",),
    )
    security: Literal["sasl_ssl", "sasl_plaintext", "ssl"] = setting(
        "sasl_ssl",
        "How Penstock connects. sasl_ssl: encrypted, with a login. ssl: encrypted, with a "
        "certificate of its own. sasl_plaintext is for brokers on this machine.",
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"] = setting(
        "SCRAM-SHA-512",
        "How Penstock logs in: with a password, or with tokens of a log-in service (`token`).",
    )
    user: Annotated[str, Field(min_length=1, max_length=256)] = setting(
        "admin",
        "The user that Penstock is; a super user, who may change users and ACLs. With a "
        "certificate or tokens these tell the cluster who it is, and the groups of Penstock's own "
        "readers begin with this name.",
    )
    password: Secret | None = setting(
        None,
        "The password of that user.",
        examples=("{file: keys/kafka-password}", "{env: KAFKA_PASSWORD}"),
    )
    ca: InputFile | None = setting(
        None,
        "The certificates that the brokers' are checked against; the system's if none.",
        examples=("certificates/kafka-ca.pem",),
    )
    certificate: InputFile | None = setting(
        None,
        "Our own certificate, where brokers ask for one.",
        examples=("certificates/penstock-kafka.pem",),
    )
    certificate_key: SecretFile | None = setting(
        None,
        "The file of the key of our own certificate.",
        examples=("keys/penstock-kafka.key",),
    )
    token: KafkaTokenSettings = Field(default_factory=KafkaTokenSettings)
    user_logins: KafkaUserLoginSettings = Field(default_factory=KafkaUserLoginSettings)
    registry: KafkaRegistrySettings = Field(default_factory=KafkaRegistrySettings)
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
        description="Whether ACLs at the cluster for users that Penstock does not manage are "
        "removed; else they are reported.",
    )
    monitor_port: Port = setting(
        9467,
        "Where `penstock rbac watch` answers /metrics, /healthz and /readyz, at the host of "
        "`monitor`; 0 takes a free one.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what is missing to log in, and what has no use beside the rest."""
        encrypted = self.security != "sasl_plaintext"
        if self.bootstrap is not None:
            yield from self._missing()
        if not encrypted:
            for name in ("ca", "certificate", "certificate_key"):
                if getattr(self, name) is not None:
                    yield Conflict(
                        name, "nothing is encrypted", f"leave {name} out, or set security: sasl_ssl"
                    )
        elif (self.certificate is None) != (self.certificate_key is None):
            name = "certificate_key" if self.certificate_key is None else "certificate"
            yield Conflict(name, "certificate and key go together", f"set {name} as well")

    def _missing(self) -> Iterator[Conflict]:
        if self.security == "ssl":
            if self.certificate is None:
                yield Conflict(
                    "certificate",
                    "without a login it takes a certificate",
                    "set certificate and certificate_key, or security: sasl_ssl",
                )
        elif self.mechanism == "OAUTHBEARER":
            for name in ("url", "secret"):
                if getattr(self.token, name) is None:
                    yield Conflict("token", f"to get tokens takes token.{name}", f"set {name}")
        elif self.password is None:
            yield Conflict(
                "password", "to log in takes a password", "set it to {file: PATH} or {env: NAME}"
            )

    @property
    def scram(self) -> ScramMechanism:
        """How users log in: what is kept of their passwords is of this kind."""
        if self.user_logins.mechanism is not None:
            return self.user_logins.mechanism
        return "SCRAM-SHA-256" if self.mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512"

    def for_users(self) -> Self:
        """Return how users connect, with a name and a password of their own."""
        own = "sasl_ssl" if self.security == "ssl" else self.security
        return self.model_copy(
            update={
                "bootstrap": self.user_logins.bootstrap or self.bootstrap,
                "security": self.user_logins.security or own,
                "mechanism": self.scram,
                "certificate": None,
                "certificate_key": None,
            }
        )
