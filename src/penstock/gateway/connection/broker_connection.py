"""The connection to the broker that belongs to one client: opened, alive, asked, and closed.

    CONNECT ──▶ the CONNACK, to whoever opens ──▶ PINGREQ ──▶ "is this still the session's?"
                                             └──▶ set aside until the client is open
    open ──▶ PINGREQ when quiet ──▶ DISCONNECT, or closed without a word
    open ──▶ a reason to wait ──▶ kept as it came ──▶ no reason left ──▶ given back in order

Rules that hold here:
- The first packet is the CONNACK, and there is one (MQTT5 3.2; `penstock.mqtt.connection`).
- Nothing is lost and nothing changes its place: what was set aside comes before what is kept.
- The socket is not read while something is waited for, except for the answer to a question;
  what comes before that answer is bounded.
- It is kept alive from here, whatever the client does: a quiet connection is pinged, and a
  broker that is silent for a keep alive after that is lost (MQTT5 3.1.2.10).
- Who closes it decides between last words and none: without DISCONNECT the broker publishes
  the will (MQTT5 3.1.2.5).
- Packet identifiers pass through the gateway, so those of its own SUBSCRIBE and UNSUBSCRIBE
  are such as the client does not use at that moment (MQTT5 2.2.1); a client that comes to use
  one waits until it is answered. An answer to something that was never asked is the broker's
  mistake.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator
from typing import Final, cast

from penstock.gateway.connection.context import FAREWELL_SECONDS
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Connection,
    Disconnect,
    Packet,
    Pingresp,
    ProtocolError,
    Reader,
    ReceiveMaximumError,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.connect import PINGREQ

QUEUES: Final = 4
"""How many of a client's queues may wait before nothing more is read from the broker."""
WINDOW: Final = "window"
"""The client leaves too much unacknowledged."""
_PINGREQ = PINGREQ.encode(V5)
_PING_SHARE: Final = 2
_HIGHEST_ID: Final = 65_535

RequestAnswer = Suback | Unsuback


class PendingRequests(dict[int, "asyncio.Future[RequestAnswer]"]):
    """The requests of one connection that are not answered yet, by packet identifier."""

    __slots__ = ("_last_id", "_send", "_used")

    def __init__(self, used: set[int], send: Callable[[list[bytes]], None]) -> None:
        super().__init__()
        self._used: Container[int] = used
        self._send = send
        self._last_id = 0

    async def subscribe(self, packet: Subscribe) -> Suback:
        """Send a SUBSCRIBE with an identifier of our choice, and wait for its answer."""
        packet_id = self._take_id()
        request = Subscribe(packet_id, packet.subscriptions, packet.properties)
        return cast("Suback", await self._ask(packet_id, request.encode(V5)))

    async def unsubscribe(self, packet: Unsubscribe) -> Unsuback:
        """Send an UNSUBSCRIBE, and wait for its answer."""
        packet_id = self._take_id()
        request = Unsubscribe(packet_id, packet.filters, packet.properties)
        return cast("Unsuback", await self._ask(packet_id, request.encode(V5)))

    def answer(self, packet: RequestAnswer) -> None:
        """Hand an answer to who asked."""
        asked = self.pop(packet.packet_id, None)
        if asked is None or asked.done():
            raise ProtocolError("an answer to a request that was never made")
        asked.set_result(packet)

    def give_up(self) -> None:
        """Tell all who wait that no answer will come."""
        for asked in self.values():
            asked.cancel()
        self.clear()

    async def _ask(self, packet_id: int, data: bytes) -> RequestAnswer:
        asked: asyncio.Future[RequestAnswer] = asyncio.get_running_loop().create_future()
        self[packet_id] = asked
        self._send([data])
        return await asked

    def _take_id(self) -> int:
        """Choose an identifier that neither the client nor another question uses now."""
        packet_id = self._last_id
        for _ in range(_HIGHEST_ID + 1):
            if packet_id and packet_id not in self._used and packet_id not in self:
                self._last_id = packet_id - 1
                return packet_id
            packet_id = packet_id - 1 if packet_id > 1 else _HIGHEST_ID
        raise ReceiveMaximumError("no packet identifier is free: too much is unanswered")


class BrokerConnection(asyncio.Protocol):
    """What can be done to a client's connection to the broker."""

    __slots__ = (
        "_loop",
        "_pinged",
        "_pings",
        "_quiet",
        "_spoke",
        "_waits",
        "ended",
        "intake",
        "keep_alive",
        "reader",
        "requests",
        "transport",
        "unacked",
    )

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: Reader, queue: int) -> None:
        self.reader = reader
        self.intake = Intake(reader, loop.create_future(), QUEUES * queue)
        self.ended = False
        self.keep_alive = 0
        self.unacked: set[int] = set()
        """The messages of the client that the broker has not finished with."""
        self.requests = PendingRequests(self.unacked, self.write)
        self._waits = self.intake.reasons
        self._loop = loop
        self._spoke = True
        self._quiet = 0
        self._pinged = 0
        self._pings: list[asyncio.Future[None] | None] = []
        """For each PINGREQ that is not answered: who waits for the answer, if somebody does."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is waited for, neither by the broker nor from it."""
        return not (self.requests or self._waits or self.ended)

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing is read because the client leaves too much unacknowledged."""
        return WINDOW in self._waits

    def write(self, packets: list[bytes]) -> None:
        """Write packets to the broker at once."""
        if packets and not self.ended:
            self._spoke = True
            self.transport.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def pause(self, reason: str) -> None:
        """Stop reading from the broker, for one of several reasons."""
        self.intake.wait(reason)

    @abstractmethod
    def resume(self, reason: str) -> None:
        """Read again where no other reason is left."""

    @abstractmethod
    def forget_decisions(self) -> None:
        """Forget what was decided."""

    def tick(self, seconds: int) -> bool:
        """Keep the connection alive; False says that the broker is silent for too long."""
        if not self.keep_alive:
            return True
        self._quiet = 0 if self._spoke else self._quiet + seconds
        self._spoke = False
        if self._waits:
            # Its answers are not read, so that its silence says nothing; ours would end all.
            self._pinged = 0
        elif self._pinged:
            self._pinged += seconds
            return self._pinged <= self.keep_alive
        if self._quiet >= self.keep_alive // _PING_SHARE:
            self._quiet = 0
            self._pinged = seconds
            self._pings.append(None)
            self.transport.write(_PINGREQ)
        return True

    async def settle_writes(self) -> None:
        """Wait until the broker has dealt with all that was written."""
        if not self.ended:
            answered: asyncio.Future[None] = self._loop.create_future()
            self._pings.append(answered)
            self.transport.write(_PINGREQ)
            await answered

    def take_pong(self) -> None:
        """Take the answer to the oldest PINGREQ."""
        answered = self._pings.pop(0) if self._pings else None
        if answered is not None and not answered.done():
            answered.set_result(None)

    def close(self, farewell: Disconnect | None) -> None:
        """Close with these last words, or without any."""
        if self.ended:
            return
        self.mark_ended(None)
        if farewell is not None:
            self.transport.write(farewell.encode(V5))
        self.transport.close()
        self._loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def mark_ended(self, error: Exception | None) -> None:
        """Take note that the connection is over; whoever opens it is told."""
        self.ended = True
        self.intake.end(error)
        while self._pings:
            self.take_pong()


OPENING: Final = "opening"
STALE: Final = "stale"
"""The definitions are."""
AWAITING_LEADER: Final = "awaiting leader"
"""Situations are not known until the leader has told them."""


class Intake:
    """The way in from the broker, closed as long as there are reasons."""

    __slots__ = (
        "_aside",
        "_aside_bytes",
        "_asked",
        "_connection",
        "_kept",
        "_limit",
        "_reader",
        "connack",
        "ended",
        "reasons",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, reader: Reader, connack: asyncio.Future[Connack], limit: int) -> None:
        self.connack = connack
        self.reasons = {OPENING}
        """Why nothing is read now; empty while it is."""
        self.ended = False
        self._connection = Connection()
        self._reader = reader
        self._limit = limit
        self._aside: list[Packet] = []
        self._aside_bytes = 0
        self._asked: asyncio.Future[bool] | None = None
        self._kept: list[bytes] = []

    def open(self, connect: Connect) -> None:
        """Send the CONNECT."""
        self._connection.see(Sender.CLIENT, connect)
        self.transport.write(connect.encode(V5))

    def end(self, error: Exception | None) -> None:
        """Take note that the connection has ended."""
        self.ended = True
        self._connection.close()
        if not self.connack.done():
            self.connack.set_exception(error or ConnectionResetError("the broker closed"))
            self.connack.exception()
        self._answer(current=False)

    def keep(self, data: bytes) -> None:
        """Keep what comes while there is a reason to wait."""
        if self.connack.done() and self._asked is None:
            self._kept.append(data)
            return
        self._aside_bytes += len(data)
        self._reader.feed(data)
        while batch := self._reader.packets():
            for packet in batch:
                self._set_aside(packet)
        if self._aside_bytes > self._limit:
            self._answer(current=False)

    def wait(self, reason: str) -> None:
        """Stop reading, for one of several reasons."""
        if not self.reasons and not self.ended:
            self.transport.pause_reading()
        self.reasons.add(reason)

    def go_on(self) -> None:
        """Read again where no reason is left."""
        if not self.reasons and not self.ended:
            self.transport.resume_reading()

    def put_back(self, packets: list[Packet]) -> None:
        """Set packets aside that could not be dealt with, before all others."""
        self._aside[:0] = packets

    def put_behind(self, packets: list[Packet]) -> None:
        """Set packets aside that came while something was put back."""
        self._aside += packets

    def packets(self) -> Iterator[Packet]:
        """Give back the packets that were set aside, as long as there is no reason to wait."""
        while self._aside and not self.reasons:
            yield self._aside.pop(0)

    def chunks(self) -> Iterator[bytes]:
        """Give back what was kept as it came, as long as there is no reason to wait."""
        while self._kept and not self.reasons and not self.ended:
            yield self._kept.pop(0)

    async def is_current(self) -> bool:
        """Ask the broker whether this connection, not open yet, is still the session's."""
        if self.ended:
            return False
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked = asked
        kept, self._kept = self._kept, []
        for data in kept:
            self.keep(data)
        self.transport.write(PINGREQ.encode(V5))
        self.transport.resume_reading()
        try:
            return await asked
        finally:
            self._asked = None
            if not self.ended:
                self.transport.pause_reading()

    def _set_aside(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._connection.see(Sender.SERVER, packet)
            self.transport.pause_reading()
            self.connack.set_result(packet)
        elif not self.connack.done():
            raise ProtocolError(f"{packet.packet_type.name} before the CONNACK")
        elif isinstance(packet, Pingresp):
            self._answer(current=True)
        else:
            self._aside.append(packet)

    def _answer(self, *, current: bool) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(current)
