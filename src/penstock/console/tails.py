"""Tails: what the gateway delivers to the user who looks, kept for a page.

    page ─▶ tail of (session, filter, purpose) ─▶ gateway, as that user ─▶ the newest messages
              └── nobody has asked for a while, or the pass has ended: closed

Rules that hold here:
- The gateway decides every message, as for every client of this user: authorization, purposes,
  opt-outs, emergencies, transformations. Nothing comes another way.
- It is bounded: so many tails in all and of each user, so many messages of each, so much of each
  payload. What was pushed out is counted.
- What is not looked at any more is closed within seconds: a page that is gone costs the gateway
  nothing.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.config import Config
from penstock.config.listeners import ListenerSettings
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.connection.tokens import derive_pass_key, make_pass
from penstock.mqtt import (
    FAILURE,
    PINGREQ,
    V5,
    Connack,
    Connect,
    Disconnect,
    Properties,
    Publish,
    Reader,
    ReasonCode,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)
from penstock.server.callers import TooManyError

KEPT: Final = 500
MOST: Final = 100
MOST_PER_USER: Final = 5
PAYLOAD_LIMIT: Final = 4_096
_UNSEEN_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 5.0
_KEEP_ALIVE: Final = 30
_READ: Final = 1 << 16
_ALL_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what they stand for


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message as it was delivered."""

    number: int
    at: float
    topic: str
    payload: bytes
    size: int
    retained: bool


class Tail:
    """One subscription, for one page."""

    def __init__(self, config: Config, user: str, filter_: str, purpose: str) -> None:
        self._config = config
        self.user = user
        self._filter = filter_
        self._purpose = purpose
        self._kept: deque[SeenMessage] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self.count = 0
        self.state = "connecting"
        self.trouble = ""
        self.over = False
        self._ended = 0.0
        threading.Thread(target=self._run, name="tail", daemon=True).start()

    def look(self) -> list[SeenMessage]:
        """Return what is kept, the newest first, and note that somebody looks."""
        self._asked = time.monotonic()
        with self._lock:
            return list(self._kept)[::-1]

    def is_stale(self) -> bool:
        """Say whether one that is over may begin anew."""
        return time.monotonic() - self._ended > _AGAIN_SECONDS

    def close(self) -> None:
        """End it."""
        self._asked = float("-inf")

    def _run(self) -> None:
        try:
            with _connect(self._config) as connection:
                self._follow(connection)
        except PenstockError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"the gateway cannot be reached: {error.strerror or type(error).__name__}")
        finally:
            self._ended = time.monotonic()
            self.over = True

    def _fail(self, trouble: str) -> None:
        self.state, self.trouble = "failed", trouble

    def _follow(self, connection: socket.socket) -> None:
        reader = Reader(Sender.SERVER, version=V5)
        key = derive_pass_key(self._config.audit.pseudonym_key.read().strip())
        client_id = f"{self.user}:console-{secrets.token_hex(4)}"
        shown = make_pass(key, self.user)
        connection.sendall(
            Connect(client_id, keep_alive=_KEEP_ALIVE, username=self.user, password=shown).encode()
        )
        connection.settimeout(1.0)
        pinged = time.monotonic()
        while time.monotonic() - self._asked < _UNSEEN_SECONDS:
            if time.monotonic() - pinged > _KEEP_ALIVE / 2:
                pinged = time.monotonic()
                connection.sendall(PINGREQ.encode(V5))
            try:
                data = connection.recv(_READ)
            except TimeoutError:
                continue
            if not data:
                self._fail("the gateway closed the connection")
                return
            reader.feed(data)
            while batch := reader.packets():
                for packet in batch:
                    if not self._take(packet, connection):
                        return
        with suppress(OSError):
            connection.sendall(Disconnect().encode(V5))

    def _take(self, packet: object, connection: socket.socket) -> bool:
        """Deal with a packet; say whether to go on."""
        match packet:
            case Connack() if packet.reason >= FAILURE:
                self._fail(f"the gateway refused to let you in: {_name(packet.reason, packet)}")
                return False
            case Connack():
                pairs = (("purpose-ap", self._purpose),) if self._purpose else ()
                wanted = RequestedSubscription(self._filter, 0)
                connection.sendall(Subscribe(1, (wanted,), Properties(user=pairs)).encode(V5))
            case Suback() if packet.reasons[0] >= FAILURE:
                self._fail(f"the subscription was refused: {_name(packet.reasons[0], packet)}")
                return False
            case Suback():
                self.state = "following"
            case Disconnect():
                self._fail(f"the gateway ended the connection: {_name(packet.reason, packet)}")
                return False
            case Publish():
                self._keep(packet)
        return True

    def _keep(self, packet: Publish) -> None:
        payload = bytes(packet.payload)
        with self._lock:
            self.count += 1
            self._kept.append(
                SeenMessage(
                    self.count,
                    time.time(),
                    packet.topic,
                    payload[:PAYLOAD_LIMIT],
                    len(payload),
                    packet.retain,
                )
            )


def _name(reason: int, packet: Connack | Suback | Disconnect) -> str:
    words = packet.properties.reason_string
    code = ReasonCode(reason).name.replace("_", " ").lower()
    return f"{code}, {words}" if words else code


class Tails:
    """All tails of a console."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str, str], Tail] = {}

    def find(self, session: str, user: str, filter_: str, purpose: str) -> tuple[Tail, bool]:
        """Return the tail of a page, and whether it has just begun."""
        key = (session, filter_, purpose)
        with self._lock:
            held = self._open.get(key)
            if held is not None and not (held.over and held.is_stale()):
                return held, False
            self._open = {it: tail for it, tail in self._open.items() if not tail.over}
            running = self._open.values()
            if len(running) >= MOST or sum(it.user == user for it in running) >= MOST_PER_USER:
                raise TooManyError("too many topics are looked at", _UNSEEN_SECONDS)
            made = self._open[key] = Tail(self._config, user, filter_, purpose)
            # One that failed, or whose pass has ended, begins anew without being told again.
            return made, held is None

    def close(self) -> None:
        """End all."""
        with self._lock:
            for tail in self._open.values():
                tail.close()
            self._open.clear()


def _connect(config: Config) -> socket.socket:
    listener = find_listener(config)
    host = _ALL_HOSTS.get(listener.host, listener.host)
    opened = socket.create_connection((host, listener.port), timeout=10.0)
    if not listener.encrypted:
        return opened
    context = ssl.create_default_context(cafile=str(listener.certificate))
    context.check_hostname = False  # it is the very certificate of this installation
    return context.wrap_socket(opened)


def find_listener(config: Config) -> ListenerSettings:
    """Return the listener of the gateway that the console uses."""
    listeners: Sequence[ListenerSettings] = list(config.gateway.listeners.values())
    for wanted in ("tcp", "tls"):
        for it in listeners:
            if it.transport == wanted and it.port and it.client_ca is None:
                return it
    raise UnavailableError(
        "the gateway has no listener that the console can use",
        fix="add one of transport tcp or tls with a port and without client_ca",
    )
