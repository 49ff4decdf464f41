"""The connection to the broker that belongs to one client: alive, asked, and closed.

    CONNECT ──▶ CONNACK ──▶ open ──▶ PINGREQ when quiet ──▶ DISCONNECT, or closed without a word

Rules that hold here:
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
from collections.abc import Callable, Container
from typing import Final, cast

from penstock.gateway.connection.context import FAREWELL_SECONDS
from penstock.gateway.connection.intake import Intake
from penstock.mqtt import (
    V5,
    Disconnect,
    ProtocolError,
    Reader,
    ReceiveMaximumError,
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
