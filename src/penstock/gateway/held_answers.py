"""Acknowledgements that wait until what they acknowledge is durable.

Rules that hold here:
- A client hears that its event has arrived when the step that it led to would survive a
  crash of this gateway, not before.
- Acknowledgements keep their order: what comes after one that waits, waits.
- Where the step will never be durable the connection ends, so that the client sends again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.gateway.ending import Cause, end

if TYPE_CHECKING:
    from penstock.gateway.downstream import Downstream
    from penstock.gateway.journal import Journal


class HeldAnswers:
    """What one client is not told yet."""

    __slots__ = ("_client", "_tickets", "_waiting")

    def __init__(self, client: Downstream) -> None:
        self._client = client
        self._tickets: dict[int, int] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def expect(self, journal: Journal, packet_id: int, ticket: int) -> None:
        """Hold the answer to a packet back until its ticket is durable."""
        if ticket <= journal.durable:
            return
        self._tickets[packet_id] = ticket

        def settle(durable: bool) -> None:  # noqa: FBT001
            if self._tickets.get(packet_id) == ticket:
                del self._tickets[packet_id]
            if not durable and not self._client.ended:
                end(self._client, Cause.BROKER)
            self._release()

        journal.wait(ticket, settle)

    def hold(self, packet_id: int, data: bytes) -> None:
        """Keep an answer of the broker, and all that follow it, for later."""
        self._waiting.append((packet_id, data))
        self._release()

    def _release(self) -> None:
        out: list[bytes] = []
        waiting = self._waiting
        while waiting and waiting[0][0] not in self._tickets:
            out.append(waiting.popleft()[1])
        if out:
            self._client.send(b"".join(out))
