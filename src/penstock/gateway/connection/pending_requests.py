"""What the gateway itself asks of the broker: SUBSCRIBE and UNSUBSCRIBE, and their answers.

Rules that hold here:
- Packet identifiers pass through the gateway, so its own are such as the client does not
  use at that moment; a client that comes to use one waits until it is answered.
- An answer to something that was never asked is the broker's mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Final, cast

from penstock.mqtt import (
    V5,
    ProtocolError,
    ReceiveMaximumError,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

Answer = Suback | Unsuback

_HIGHEST_ID: Final = 65_535


class PendingRequests(dict[int, "asyncio.Future[Answer]"]):
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

    def answer(self, packet: Answer) -> None:
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

    async def _ask(self, packet_id: int, data: bytes) -> Answer:
        asked: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
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
