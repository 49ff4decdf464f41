"""Connections between gateways: an asyncio protocol around a `Channel`.

Rules that hold here:
- Messages that are sent in one step of the loop go out in one write.
- A connection that violates the protocol, or does not greet in time, is closed. `ended` is called
  once, and `heard` never after it.
- Connections to the leader that have not said yet which follower they are have few places,
  which networks share fairly: nobody keeps followers out by opening many. Their refusal is
  logged once a second, with how many there were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.limits import FairPlaces, network_of
from penstock.gateway.replication.protocol import Channel, ChannelError, Message, decode, encode
from penstock.telemetry import get_logger

GREETING_SECONDS: Final = 5.0
BUFFER_LIMIT: Final = 256 << 20
"""The most that may wait for a gateway that does not read."""
CHECKS_PER_LEASE: Final = 4
"""Pings of a follower, and the leader's checks for silent followers, per lease."""


@dataclass(frozen=True, slots=True)
class ReplicationTerms:
    """What gateways that share detection agree on."""

    secret: bytes
    largest: int
    """The longest message between them, in bytes."""
    lease: float
    """How long followers rely on replicated state after a ping, in seconds."""
    patience: float
    """How long messages wait for a leader, in seconds."""


class Link(asyncio.Protocol):
    """One end of a connection."""

    def __init__(
        self,
        terms: ReplicationTerms,
        *,
        caller: bool,
        opened: Callable[[Link], None],
        heard: Callable[[Link, Message], None],
        ended: Callable[[Link, str], None],
    ) -> None:
        self.open = False
        self._channel = Channel(terms.secret, caller=caller, limit=terms.largest)
        self._opened = opened
        self._heard = heard
        self._ended = ended
        self._greeted = False
        self._over = False
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.abort()
            return
        self._transport.write(self._channel.hello)
        self._timer = self._loop.call_later(
            GREETING_SECONDS, self.close, "it did not greet in time"
        )

    def data_received(self, data: bytes) -> None:
        """Deal with what the other gateway sent."""
        try:
            for message in self._channel.feed(data):
                self._greet()
                self._heard(self, decode(message))
                if self._over:
                    return
            self._greet()
        except ChannelError as error:
            # The other side is to find out by itself what is wrong.
            self._greet()
            self.close(error.message)
        except PenstockError as error:
            self.close(f"it could not be dealt with: {type(error).__name__}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who uses it."""
        del exc
        if self._timer is not None:
            self._timer.cancel()
        self._end("the connection broke")

    # --- both ends ---

    def send(self, message: Message) -> None:
        """Send a message, together with what else is sent in this step."""
        if self._over:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(encode(message))

    def close(self, why: str) -> None:
        """Close it; what was sent before still goes out."""
        if self._over:
            return
        self._flush()
        self._end(why)
        if self._transport is not None:
            self._transport.close()
            self._timer = self._loop.call_later(GREETING_SECONDS, self._transport.abort)

    def cut_off(self, why: str) -> None:
        """End it at once, whatever was still to be sent."""
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def _flush(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if not out or self._over or transport is None or not self._channel.agreed:
            return
        transport.write(b"".join(map(self._channel.seal, out)))
        if transport.get_write_buffer_size() > BUFFER_LIMIT:
            transport.abort()

    def _greet(self) -> None:
        if self._channel.agreed and not self._greeted and self._transport is not None:
            self._greeted = True
            self._transport.write(self._channel.greeting)
        if self._channel.ready and not self.open and not self._over:
            self.open = True
            if self._timer is not None:
                self._timer.cancel()
            self._opened(self)

    def _end(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self, why)


MAX_STRANGERS: Final = 100
_PATIENCE_SECONDS: Final = 1.0
_TOO_MANY: Final = "there are too many strangers"

_log = get_logger("gateway")


class Strangers:
    """Who is connected and not known."""

    def __init__(self) -> None:
        self._places: FairPlaces[Link] = FairPlaces(
            MAX_STRANGERS, MAX_STRANGERS // 2, _PATIENCE_SECONDS
        )
        self._refused = 0
        self._told = 0.0

    def __iter__(self) -> Iterator[Link]:
        return iter(self._places)

    def admit(self, link: Link, address: str) -> bool:
        """Give a connection a place; False where there is none for it."""
        claim = self._places.claim(network_of(address), link, boot_clock())
        if claim.displaced is not None:
            claim.displaced.cut_off(_TOO_MANY)
        return claim.granted

    def leave(self, link: Link) -> None:
        """Take note that a connection is known, or gone."""
        self._places.leave(link)

    def note_refusal(self) -> None:
        """Log that somebody was refused, once a second."""
        self._refused += 1
        now = boot_clock()
        if now - self._told >= 1.0:
            count, self._refused, self._told = self._refused, 0, now
            _log.warning(
                "connections from another gateway were refused", reason="link", count=count
            )


class IncomingLink(Link):
    """A connection that somebody opened to the leader."""

    def __init__(
        self,
        terms: ReplicationTerms,
        strangers: Strangers,
        *,
        heard: Callable[[Link, Message], None],
        ended: Callable[[Link, str], None],
    ) -> None:
        super().__init__(terms, caller=False, opened=_nothing, heard=heard, ended=ended)
        self._strangers = strangers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello, if there is a place."""
        peer = transport.get_extra_info("peername")
        if self._strangers.admit(self, str(peer[0]) if peer else ""):
            super().connection_made(transport)
        else:
            cast("asyncio.Transport", transport).abort()
            self.cut_off(_TOO_MANY)


def _nothing(link: Link) -> None:
    """Wait until the other says who it is."""
