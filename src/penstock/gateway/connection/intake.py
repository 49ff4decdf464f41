"""What the broker sends before it may be passed on: while a connection opens, or must wait.

    CONNECT ──▶ the CONNACK, to whoever opens ──▶ PINGREQ ──▶ "is this still the session's?"
                                             └──▶ set aside until the client is open
    open ──▶ a reason to wait ──▶ kept as it came ──▶ no reason left ──▶ given back in order

Rules that hold here:
- The first packet is the CONNACK, and there is one (MQTT5 3.2; `penstock.mqtt.connection`).
- Nothing is lost and nothing changes its place: what was set aside comes before what is kept.
- The socket is not read while something is waited for, except for the answer to a question;
  what comes before that answer is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Connection,
    Packet,
    Pingresp,
    ProtocolError,
    Reader,
    Sender,
)
from penstock.mqtt.connect import PINGREQ

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
