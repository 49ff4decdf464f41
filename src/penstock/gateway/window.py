"""A client's receive maximum, kept even where the broker does not.

Rules that hold here:
- Never more messages of QoS 1 and 2 are unacknowledged than the client said it takes.
- What is beyond that is kept in order, and given back when there is room; who gets it back
  decides on it then.
- The gateway goes on reading while little is kept: what ends an exchange of QoS 2 may come
  behind the next message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from penstock.mqtt import Puback, Pubcomp, Publish, Pubrec

_QOS = 0x06
_MESSAGE_BYTES = 256


def cost(packet: Publish) -> int:
    """Return about what a message that waits takes, however empty it is."""
    return (
        _MESSAGE_BYTES + len(packet.topic_field) + len(packet.properties.raw) + len(packet.payload)
    )


class Window:
    """The messages that a client has not acknowledged, and those that wait for it."""

    __slots__ = ("_in_flight", "_kept", "_size", "kept_bytes")

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_flight: set[int] = set()
        self._kept: deque[Publish] = deque()
        self.kept_bytes = 0

    def admits(self, packet: Publish) -> bool:
        """Say whether a message may be sent now; if not, it is kept."""
        if not self._kept and not self._is_beyond(packet):
            return True
        self._kept.append(packet)
        self.kept_bytes += cost(packet)
        return False

    def send(self, packet: Publish) -> None:
        """Take note that a message is sent."""
        if packet.first & _QOS:
            self._in_flight.add(packet.packet_id)

    def settle(self, packet: Puback | Pubrec | Pubcomp) -> None:
        """Take an answer of the client."""
        if type(packet) is not Pubrec or packet.failed:
            self._in_flight.discard(packet.packet_id)

    def release(self) -> Iterator[Publish]:
        """Yield what may be sent now, one after the other."""
        # Taken out while they are given back, so that they do not wait behind themselves.
        kept, self._kept = self._kept, deque()
        while kept and not self._is_beyond(kept[0]):
            message = kept.popleft()
            self.kept_bytes -= cost(message)
            yield message
        self._kept = kept

    def _is_beyond(self, packet: Publish) -> bool:
        return bool(
            packet.first & _QOS
            and len(self._in_flight) >= self._size
            and packet.packet_id not in self._in_flight
        )
