"""Privacy requests: how services, teams and people are told (`rights`), and the `server` for them.

Rules that hold here:
- Endpoints and credentials of queues, brokers, mail servers and SMS gateways stand here alone;
  definitions name places there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from penstock.config.listeners import ListenerName, ServerListenerSettings, find_twins
from penstock.config.secrets import Secret
from penstock.config.settings import (
    Conflict,
    DataPath,
    Duration,
    Host,
    InputFile,
    Port,
    Settings,
    Size,
    TypeLabel,
    setting,
    wrong,
)


def _check_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise wrong(f"{text!r} is no network", "write such as 10.1.0.0/16 or fd00::/8") from None
    return text


Network = Annotated[
    str, Field(max_length=64), AfterValidator(_check_network), TypeLabel("a network")
]


def _check_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        # Not quoted: it may hold a password.
        raise wrong("this is no URL of a server", "write such as https://sms.example/send")
    return text


Url = Annotated[str, Field(max_length=2000), AfterValidator(_check_url), TypeLabel("a URL")]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
Prefix = Annotated[str, Field(max_length=200)]


class AwsSettings(Settings):
    """SQS and SNS: how messages are put there."""

    endpoint: Url | None = setting(
        None,
        "A server that speaks the protocols of SQS and SNS; Amazon's of the region if none.",
        examples=("https://vpce-1234.sqs.eu-west-1.vpce.amazonaws.com",),
    )
    access_key: Secret | None = setting(
        None,
        "The id of the access key; without it, the role of the machine.",
        examples=("{env: PRIVACY_AWS_ACCESS_KEY}",),
    )
    secret_key: Secret | None = setting(
        None, "The secret of the access key.", examples=("{file: keys/aws-secret}",)
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield half of an access key."""
        if (self.access_key is None) != (self.secret_key is None):
            missing = "secret_key" if self.secret_key is None else "access_key"
            yield Conflict(missing, "an access key has an id and a secret", f"set {missing} too")


class RightsKafkaSettings(Settings):
    """Topics of the Kafka cluster (see `kafka`) that services are told on."""

    prefix: Prefix = setting(
        "privacy.", "How these topics begin: a definition can name no other topic."
    )
    user: Name | None = setting(
        None,
        "The user that writes there; Penstock's own if none.",
        examples=("privacy",),
    )
    password: Secret | None = setting(
        None, "The password of that user.", examples=("{file: keys/privacy-kafka}",)
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a user without a password, and the reverse."""
        if (self.user is None) != (self.password is None):
            missing = "user" if self.user is None else "password"
            yield Conflict(missing, "user and password go together", f"set {missing} as well")


class RightsMqttSettings(Settings):
    """The MQTT broker, or the gateway, whose topics services are told on."""

    host: Host | None = setting(
        None, "Its host; without it no service is told by MQTT.", examples=("127.0.0.1",)
    )
    port: Port = setting(8883, "Its port.")
    tls: bool = setting(default=True, description="Whether the connection is encrypted.")
    ca: InputFile | None = setting(
        None,
        "The certificates that the broker's is checked against; the system's if none.",
        examples=("certificates/broker-ca.pem",),
    )
    username: Name | None = setting(None, "The user we are there.", examples=("privacy",))
    password: Secret | None = setting(
        None, "The password of that user.", examples=("{file: keys/privacy-mqtt}",)
    )
    prefix: Prefix = setting(
        "privacy/", "How these topics begin: a definition can name no other topic."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a password without a user."""
        if self.password is not None and self.username is None:
            yield Conflict("password", "a password needs a user", "set username as well")


class EmailSettings(Settings):
    """The mail server for alerts to teams and notes to people."""

    host: Host | None = setting(
        None, "Its host; without it no e-mail is sent.", examples=("mail.example",)
    )
    port: Port = setting(587, "Its port.")
    security: Literal["starttls", "tls", "none"] = setting(
        "starttls", "How the connection is encrypted; none is for servers on this machine."
    )
    ca: InputFile | None = setting(
        None,
        "The certificates that the server's is checked against; the system's if none.",
        examples=("certificates/mail-ca.pem",),
    )
    username: Name | None = setting(None, "The user we are there.", examples=("privacy",))
    password: Secret | None = setting(
        None, "The password of that user.", examples=("{file: keys/mail-password}",)
    )
    sender: Annotated[str, Field(pattern=r"^[!-~]{1,200}@[!-~]{1,200}$")] = setting(
        "penstock@localhost", "The address that e-mails come from."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a password without a user, or one that would travel in clear."""
        if (self.username is None) != (self.password is None):
            missing = "username" if self.username is None else "password"
            yield Conflict(missing, "user and password go together", f"set {missing} as well")
        if self.password is not None and self.security == "none":
            yield Conflict(
                "security", "the password would travel in clear", "set it to starttls or tls"
            )


class SmsSettings(Settings):
    """The SMS gateway: it gets a POST of `{"to": NUMBER, "text": TEXT}`."""

    url: Url | None = setting(
        None, "Where it is; without it no SMS is sent.", examples=("https://sms.example/send",)
    )
    token: Secret | None = setting(
        None, "What stands in Authorization: Bearer.", examples=("{file: keys/sms-token}",)
    )


class RightsSettings(Settings):
    """How services are told of privacy requests."""

    networks: Annotated[tuple[Network, ...], Field(max_length=100)] = setting(
        (),
        "Networks of one's own that services may be in. Public addresses are allowed by https, "
        "those of this machine and of private networks only where they are listed here. By http "
        "nothing is called but what is listed here.",
    )
    timeout: Annotated[Duration, Field(ge=0.1, le=300)] = setting(
        "10s", "How long a service may take to answer a call."
    )
    poll: Annotated[Duration, Field(ge=0.01, le=60)] = setting(
        "500ms", "How often a worker looks for what is due."
    )
    exports: DataPath = setting(
        "exports",
        "The folder of packages that people asked for, until they are handed over.",
    )
    settle: Annotated[Duration, Field(ge=0, le=86_400)] = setting(
        "10m",
        "How long a batch of a view may take: erasure looks at what running views have published "
        "only so long after it has erased from the event log.",
    )
    office: Annotated[str, Field(pattern=r"^[!-~]{1,200}@[!-~]{1,200}$")] | None = setting(
        None,
        "The e-mail address that is alerted where a service that failed names no contact.",
        examples=("privacy-office@example.com",),
    )
    monitor_port: Port = setting(
        9468,
        "Where `penstock requests work` answers /metrics, /healthz and /readyz, at the host of "
        "`monitor`; 0 takes a free one.",
    )
    aws: AwsSettings = Field(default_factory=AwsSettings)
    kafka: RightsKafkaSettings = Field(default_factory=RightsKafkaSettings)
    mqtt: RightsMqttSettings = Field(default_factory=RightsMqttSettings)
    email: EmailSettings = Field(default_factory=EmailSettings)
    sms: SmsSettings = Field(default_factory=SmsSettings)

    def package(self, request: str) -> Path:
        """Return where the package of a request is kept until it is handed over."""
        return self.exports / f"{request}.zip"


class HttpLimitSettings(Settings):
    """Limits on connections and calls."""

    connections: Annotated[int, Field(ge=1, le=100_000)] = setting(
        2_000, "The most connections at a time."
    )
    connections_per_address: Annotated[int, Field(ge=1, le=100_000)] = setting(
        1_000, "The most of these from one network address."
    )
    unauthenticated: Annotated[int, Field(ge=2, le=100_000)] = setting(
        500,
        "The most connections at a time on which nobody has proved yet who they are. Networks "
        "share them fairly.",
    )
    unauthenticated_per_address: Annotated[int, Field(ge=1, le=100_000)] = setting(
        250, "The most of these from one network address."
    )
    handshakes: Annotated[int, Field(ge=2, le=100_000)] = setting(
        100, "The most TLS handshakes under way at a time, half of them from one network address."
    )
    timeout: Annotated[Duration, Field(ge=1, le=300)] = setting(
        "30s", "How long a call may take, from its first byte to the last of its answer."
    )
    body: Annotated[Size, Field(ge=1024, le=1 << 24)] = setting(
        "256KiB", "The largest body of a call."
    )


class ServerLimitSettings(HttpLimitSettings):
    """Limits on what callers may use."""

    rate: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        200, "How many requests one user may submit, answer or ask for per second."
    )
    burst: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        1_000, "How many of these at once, before the rate counts."
    )
    denials: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        120,
        "How many calls of one user per minute may ask for what is not theirs: each is in the "
        "audit log. Beyond it, all calls of the user wait.",
    )
    at_a_time: Annotated[int, Field(ge=1, le=10_000)] = setting(
        64, "How many calls of one user are worked on at a time."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a burst that no batch fits into."""
        if self.burst < self.rate:
            yield Conflict("burst", "it is smaller than the rate", "raise it to the rate")


class ServerSettings(Settings):
    """Where front ends and services hand in and answer privacy requests."""

    listeners: Annotated[
        Mapping[ListenerName, ServerListenerSettings], Field(min_length=1, max_length=16)
    ] = setting({"rest": {}}, "Where they connect: a name of your choice, and its settings.")
    limits: ServerLimitSettings = Field(default_factory=ServerLimitSettings)
    threads: Annotated[int, Field(ge=1, le=64)] = setting(
        8, "How many calls ask the store at a time."
    )
    monitor_port: Port = setting(
        9469,
        "Where the server answers /metrics, /healthz and /readyz, at the host of `monitor`; 0 "
        "takes a free one.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield two listeners that want the same address."""
        yield from find_twins(self.listeners)
