"""Where front ends and services reach Penstock by REST and gRPC: `server`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.secrets import SecretFile
from penstock.config.sections.gateway import ListenerName
from penstock.config.settings import (
    Conflict,
    Duration,
    Host,
    InputFile,
    Port,
    Settings,
    Size,
    is_loopback,
    setting,
)


class ServerListenerSettings(Settings):
    """One address where front ends and services connect."""

    protocol: Literal["rest", "grpc"] = setting("rest", "What is spoken there.")
    transport: Literal["tcp", "tls"] = setting(
        "tcp", "How they connect; tcp only at an address of this machine alone."
    )
    host: Host = setting("127.0.0.1", "The address it listens on; 0.0.0.0 is every IPv4 address.")
    port: Port = setting(8443, "The port it listens on; 0 takes a free one.")
    certificate: InputFile | None = setting(
        None, "The certificate chain, for TLS.", examples=("certificates/server.pem",)
    )
    key: SecretFile | None = setting(
        None, "The file of its key, for TLS.", examples=("keys/server.key",)
    )
    client_ca: InputFile | None = setting(
        None,
        "The certificates that those of clients are checked against. Who shows one is the user of "
        "its common name; others need a token or a password. By gRPC everybody has to show one.",
        examples=("certificates/clients-ca.pem",),
    )

    @property
    def encrypted(self) -> bool:
        """Whether what clients send is protected on its way."""
        return self.transport == "tls"

    def conflicts(self) -> Iterator[Conflict]:
        """Yield TLS files where there is no TLS, the reverse, and tokens in clear on a network."""
        for name in ("certificate", "key"):
            if self.encrypted and getattr(self, name) is None:
                yield Conflict(name, "the transport tls needs it", "name a file in PEM form")
        for name in ("certificate", "key", "client_ca"):
            if not self.encrypted and getattr(self, name) is not None:
                yield Conflict(
                    name, "the transport tcp does not use it", "leave it out, or set tls"
                )
        if not self.encrypted and not is_loopback(self.host):
            yield Conflict(
                "transport",
                "without TLS, others on the network could read tokens and whom requests are about",
                "set it to tls, or host to 127.0.0.1",
            )


class ServerLimitSettings(Settings):
    """Limits on what callers may use."""

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
        taken: dict[tuple[str, int], str] = {}
        for name, listener in self.listeners.items():
            first = taken.setdefault((listener.host, listener.port), name)
            if first != name and listener.port:
                yield Conflict(
                    f"listeners.{name}.port",
                    f"the listener {first!r} has the same address",
                    "choose another port",
                )
