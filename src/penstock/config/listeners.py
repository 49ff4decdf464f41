"""Where others connect: the listeners of the gateway and of the server, and their TLS files.

Rules that hold here:
- TLS files are named where there is TLS, and nowhere else.
- Without TLS the server listens on this machine alone; the gateway warns (`penstock doctor`).
- No two listeners have one address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.secrets import SecretFile
from penstock.config.settings import (
    Conflict,
    Host,
    InputFile,
    Port,
    Settings,
    TypeLabel,
    is_loopback,
    setting,
)

ListenerName = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9]{0,31}$"),
    TypeLabel("a name", "at most 32 small letters and digits, a letter first"),
]


Origin = Annotated[
    str,
    Field(pattern=r"^(\*|null|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]{1,255})$"),
    TypeLabel("an origin", "SCHEME://HOST or SCHEME://HOST:PORT in small letters, `null`, or *"),
]


class ListenerSettings(Settings):
    """One address where clients connect."""

    transport: Literal["tcp", "tls", "websocket", "websocket-tls"] = setting(
        "tcp", "How clients connect."
    )
    host: Host = setting("127.0.0.1", "The address it listens on; 0.0.0.0 is every IPv4 address.")
    port: Port = setting(1883, "The port it listens on; 0 takes a free one.")
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=256)] = setting(
        "/mqtt", "The path of the WebSocket."
    )
    origins: Annotated[tuple[Origin, ...], Field(max_length=256)] = setting(
        (),
        "The web pages whose scripts may connect to the WebSocket, by their origin; * is every "
        "page. Besides these, the page's own host is accepted where the browser has proof of it: "
        "over TLS, or by an IP address or `localhost`. What sends no Origin is no web page, and "
        "is accepted.",
        examples=('["https://ward.example.org"]',),
    )
    certificate: InputFile | None = setting(
        None,
        "The certificate chain, for TLS.",
        examples=("certificates/server.pem",),
    )
    key: SecretFile | None = setting(
        None, "The file of its key, for TLS.", examples=("keys/server.key",)
    )
    client_ca: InputFile | None = setting(
        None,
        "The certificates that every client's is checked against, for mutual TLS.",
        examples=("certificates/clients-ca.pem",),
    )

    @property
    def encrypted(self) -> bool:
        """Whether what clients send is protected on its way."""
        return self.transport in {"tls", "websocket-tls"}

    def conflicts(self) -> Iterator[Conflict]:
        """Yield TLS files where there is no TLS, the reverse, and origins without a WebSocket."""
        if self.origins and not self.transport.startswith("websocket"):
            yield Conflict(
                "origins",
                f"the transport {self.transport} does not use it",
                "leave it out, or set transport to websocket or websocket-tls",
            )
        yield from _check_tls_files(self, "leave it out, or set transport to tls or websocket-tls")


class HttpListenerSettings(Settings):
    """One address where HTTP is spoken, or what is built on it."""

    transport: Literal["tcp", "tls"] = setting(
        "tcp", "How they connect; tcp only at an address of this machine alone."
    )
    host: Host = setting("127.0.0.1", "The address it listens on; 0.0.0.0 is every IPv4 address.")
    certificate: InputFile | None = setting(
        None, "The certificate chain, for TLS.", examples=("certificates/server.pem",)
    )
    key: SecretFile | None = setting(
        None, "The file of its key, for TLS.", examples=("keys/server.key",)
    )

    @property
    def encrypted(self) -> bool:
        """Whether what clients send is protected on its way."""
        return self.transport == "tls"

    def conflicts(self) -> Iterator[Conflict]:
        """Yield TLS files where there is no TLS, the reverse, and secrets in clear on a network."""
        yield from _check_tls_files(self, "leave it out, or set tls")
        if not self.encrypted and not is_loopback(self.host):
            yield Conflict(
                "transport",
                "without TLS, others on the network could read tokens and whom requests are about",
                "set it to tls, or host to 127.0.0.1",
            )


class ServerListenerSettings(HttpListenerSettings):
    """One address where front ends and services connect."""

    protocol: Literal["rest", "grpc"] = setting("rest", "What is spoken there.")
    port: Port = setting(8443, "The port it listens on; 0 takes a free one.")
    client_ca: InputFile | None = setting(
        None,
        "The certificates that those of clients are checked against. Who shows one is the user of "
        "its common name; others need a token or a password. By gRPC everybody has to show one.",
        examples=("certificates/clients-ca.pem",),
    )


class ConsoleListenerSettings(HttpListenerSettings):
    """Where people reach the console with their browsers."""

    port: Port = setting(8480, "The port it listens on; 0 takes a free one.")

    @property
    def client_ca(self) -> Path | None:
        """People prove who they are by signing in: no certificate is asked for."""
        return None


GatewayOrServer = ListenerSettings | ServerListenerSettings
HttpListener = ServerListenerSettings | ConsoleListenerSettings

Listener = ListenerSettings | HttpListenerSettings


def _check_tls_files(listener: Listener, remedy: str) -> Iterator[Conflict]:
    for name in ("certificate", "key", "client_ca"):
        given = getattr(listener, name, None) is not None
        if listener.encrypted and not given and name != "client_ca":
            why = f"the transport {listener.transport} needs it"
            yield Conflict(name, why, "name a file in PEM form")
        elif given and not listener.encrypted:
            yield Conflict(name, f"the transport {listener.transport} does not use it", remedy)


def find_twins(
    listeners: Mapping[str, GatewayOrServer],
) -> Iterator[Conflict]:
    """Yield listeners that want the same address as one before them."""
    taken: dict[tuple[str, int], str] = {}
    for name, listener in listeners.items():
        first = taken.setdefault((listener.host, listener.port), name)
        if first != name and listener.port:
            message = f"the listener {first!r} has the same address"
            yield Conflict(f"listeners.{name}.port", message, "choose another port")
