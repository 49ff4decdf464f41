"""The broker behind the gateway: its address, the gateway's credentials, the texts it accepts.

Rules that hold here:
- TLS towards the broker always verifies its certificate.
- The embedded broker is reached at its socket. It is told nothing, the password least of all,
  before it is known that it runs as the user that we are (`check_listener`).
- A receiver may close the connection over control characters and non-characters, although
  they are UTF-8 (MQTT5 1.5.4). On a client's own connection that is between the client and
  the broker. The gateway's own connections carry messages of all clients, so texts that are
  not acceptable never go out on them, nor topics that some broker may refuse.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from penstock.components.mosquitto import (
    GATEWAY_USER,
    check_listener,
    find_listener,
    generate_password,
    reach,
)
from penstock.config.secrets import KeyFile, Secret
from penstock.config.sections.brokers import BrokerSettings
from penstock.mqtt import are_acceptable

_PROBE_SECONDS: Final = 1.0
_FULL_SECONDS: Final = 0.005
_ORDINARY_BYTES: Final = 1_024
_ORDINARY_LEVELS: Final = 100

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker behind the gateway."""

    host: str
    port: int
    socket: Path | None = None
    """The socket of the embedded broker; an external one has host and port."""
    keep_alive: int = 30
    timeout: float = 5.0
    tls: ssl.SSLContext | None = None
    username: str | None = None
    secret: Secret | None = None

    @classmethod
    def of(cls, settings: BrokerSettings) -> BrokerAddress:
        """Read the settings."""
        embedded = settings.mode == "embedded"
        return cls(
            host=settings.host,
            port=settings.port,
            socket=settings.socket if embedded else None,
            keep_alive=int(settings.keep_alive),
            timeout=settings.connect_timeout,
            tls=settings.tls.make_context() if settings.tls.enabled else None,
            username=GATEWAY_USER if embedded else settings.username,
            secret=settings.key if embedded else settings.password,
        )

    async def connect(self, factory: Callable[[], P]) -> P:
        """Open a connection; return what the factory made for it."""
        loop = asyncio.get_running_loop()
        if self.socket is None:
            _, made = await loop.create_connection(factory, self.host, self.port, ssl=self.tls)
        else:
            connected = await _dial(self.socket)
            _, made = await loop.create_unix_connection(factory, sock=connected)
        return made

    async def open_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to read from and to write to."""
        if self.socket is None:
            return await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        return await asyncio.open_unix_connection(sock=await _dial(self.socket))

    def check(self) -> str | None:
        """Say why no connection can be opened, if so."""
        if self.socket is not None:
            found = find_listener(self.socket)
            return None if found else "the broker cannot be reached at its socket"
        try:
            with socket.create_connection((self.host, self.port), timeout=_PROBE_SECONDS):
                return None
        except OSError as error:
            return f"the broker cannot be reached: {type(error).__name__}"

    def password(self) -> bytes | None:
        """Read the gateway's own password at the broker."""
        if isinstance(self.secret, KeyFile):
            self.secret.read_or_create(generate_password)
        return self.secret.read_text().encode() if self.secret is not None else None


async def _dial(path: Path) -> socket.socket:
    """Connect to the socket of the embedded broker; whoever waits for it bounds the time."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with reach(path) as address:
            # A socket is connected at once, or its queue is full: Mosquitto's has ten places.
            # Nothing tells when there is room.
            while not _is_connected(made, address):  # noqa: ASYNC110
                await asyncio.sleep(_FULL_SECONDS)
        check_listener(made)
    except BaseException:
        made.close()
        raise
    return made


def _is_connected(made: socket.socket, address: str) -> bool:
    try:
        made.connect(address)
    except BlockingIOError:
        return False
    return True


def is_ordinary(topic: str) -> bool:
    """Say whether every broker takes messages to a topic: others cost a client its connection."""
    return (
        len(topic) <= _ORDINARY_BYTES
        and topic.count("/") < _ORDINARY_LEVELS
        and "$" not in topic
        and are_acceptable((topic,))
    )
