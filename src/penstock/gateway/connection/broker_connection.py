"""The connection to the broker that belongs to one client: its transport, alive and closed.

    CONNECT ──▶ CONNACK ──▶ open ──▶ PINGREQ when quiet ──▶ DISCONNECT, or closed without a word

Rules that hold here:
- It is kept alive from here, whatever the client does: a quiet connection is pinged, and a
  broker that is silent for a keep alive after that is lost (MQTT5 3.1.2.10).
- Who closes it decides between last words and none: without DISCONNECT the broker publishes
  the will (MQTT5 3.1.2.5).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final

from penstock.gateway.connection.disconnect import FAREWELL_SECONDS
from penstock.gateway.connection.intake import Intake
from penstock.gateway.connection.pending_requests import PendingRequests
from penstock.mqtt import V5, Disconnect, Reader
from penstock.mqtt.control import PINGREQ

QUEUES: Final = 4
"""How many of a client's queues may wait before nothing more is read from the broker."""
WINDOW: Final = "window"
"""The client leaves too much unacknowledged."""
_PINGREQ = PINGREQ.encode(V5)
_PING_SHARE: Final = 2


class BrokerConnection(asyncio.Protocol):
    """What can be done to a client's connection to the broker."""

    __slots__ = (
        "_loop",
        "_pinged",
        "_quiet",
        "_spoke",
        "_waits",
        "ended",
        "intake",
        "keep_alive",
        "reader",
        "requests",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reader: Reader, queue: int, used: set[int]
    ) -> None:
        self.reader = reader
        self.intake = Intake(reader, loop.create_future(), QUEUES * queue)
        self.ended = False
        self.keep_alive = 0
        self.requests = PendingRequests(used, self.write)
        self._waits = self.intake.reasons
        self._loop = loop
        self._spoke = True
        self._quiet = 0
        self._pinged = 0

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
            self.transport.write(_PINGREQ)
        return True

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
