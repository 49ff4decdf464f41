"""Acknowledgements that wait until what they acknowledge is durable.

Rules that hold here:
- A client hears that its message has arrived when the step that it led to as an event, and
  its record in the event log where that was asked for, would survive a crash of this gateway.
- Acknowledgements keep their order (MQTT5 4.6): what comes after one that waits, waits.
- Where something will not be durable the connection ends, so that the client sends again
  (MQTT5 4.4).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.gateway.connection.disconnect import Cause
from penstock.gateway.publish_result import Journal


class AckReceiver(Protocol):
    """The client that acknowledgements are for."""

    def send(self, data: bytes) -> None:
        """Write to the client."""

    def end(self, cause: Cause) -> None:
        """End its connection."""


class DeferredAcks:
    """What one client is not told yet."""

    __slots__ = ("_client", "_waiting", "open")

    def __init__(self, client: AckReceiver) -> None:
        self._client = client
        self.open: dict[int, int] = {}
        """For how many things the answer to a packet waits; empty: nothing is held."""
        self._waiting: deque[tuple[int, bytes]] = deque()

    def expect(self, journal: Journal, packet_id: int, ticket: int) -> None:
        """Hold the answer to a packet back until its ticket is durable, too."""
        if ticket <= journal.durable:
            return
        self.open[packet_id] = self.open.get(packet_id, 0) + 1

        def settle(durable: bool) -> None:  # noqa: FBT001
            self.open[packet_id] -= 1
            if not self.open[packet_id]:
                del self.open[packet_id]
            if not durable:
                self._client.end(Cause.BROKER)
            self._release()

        journal.wait(ticket, settle)

    def hold(self, packet_id: int, data: bytes) -> None:
        """Keep an answer of the broker, and all that follow it, for later."""
        self._waiting.append((packet_id, data))
        self._release()

    def _release(self) -> None:
        out: list[bytes] = []
        waiting = self._waiting
        while waiting and waiting[0][0] not in self.open:
            out.append(waiting.popleft()[1])
        if out:
            self._client.send(b"".join(out))
