"""What bounds the deliveries to one client: its receive maximum, and duplicates of one message.

Towards MQTT 5 some brokers send a message once for each subscription that it matches, one
copy after the other, each with the identifier of its subscription (MQTT5 3.3.4 allows both).
The same brokers send clients of 3.1.1 one copy, and the gateway always is a client of MQTT 5.

Rules that hold here:
- Never more messages of QoS 1 and 2 are unacknowledged than the client said it takes.
- What is beyond that is kept in order (MQTT5 4.9), and given back when there is room; who gets
  it back decides on it then.
- The gateway goes on reading while little is kept: what ends an exchange of QoS 2 may come
  behind the next message.
- A copy follows its message at once, equals it, and names subscriptions that were not named
  for that message yet. The same message published twice names them again, so it is no copy.
- The first copy that may be delivered is; the others are acknowledged to the broker.
- Retained messages are sent once for each subscription that asks for them, in any version.
"""

from __future__ import annotations

from collections import deque

from penstock.mqtt import Puback, Pubcomp, Publish, Pubrec

_QOS = 0x06
_MESSAGE_BYTES = 256


def cost(packet: Publish) -> int:
    """Return about what a message that waits takes, however empty it is."""
    return (
        _MESSAGE_BYTES + len(packet.topic_field) + len(packet.properties.raw) + len(packet.payload)
    )


class ReceiveWindow:
    """The messages that a client has not acknowledged, and those that wait for it."""

    __slots__ = ("_in_flight", "_kept", "_released", "_size", "kept_bytes")

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_flight: set[int] = set()
        self._kept: deque[Publish] = deque()
        self._released: Publish | None = None
        self.kept_bytes = 0

    def admits(self, packet: Publish) -> bool:
        """Say whether a message may be sent now; if not, it is kept."""
        if packet is self._released or (not self._kept and not self._is_beyond(packet)):
            return True
        self._kept.append(packet)
        self.kept_bytes += cost(packet)
        return False

    def takes_back(self, packet: Publish) -> bool:
        """Keep a message again that was given back last and could not be decided on."""
        if packet is not self._released:
            return False
        self._released = None
        self._kept.appendleft(packet)
        self.kept_bytes += cost(packet)
        return True

    def send(self, packet: Publish) -> None:
        """Take note that a message is sent."""
        if packet.first & _QOS:
            self._in_flight.add(packet.packet_id)

    def settle(self, packet: Puback | Pubrec | Pubcomp) -> None:
        """Take an answer of the client."""
        if type(packet) is not Pubrec or packet.failed:
            self._in_flight.discard(packet.packet_id)

    def release(self) -> Publish | None:
        """Give back the next message that may be sent now; None: there is none."""
        self._released = None
        if self._kept and not self._is_beyond(self._kept[0]):
            self._released = self._kept.popleft()
            self.kept_bytes -= cost(self._released)
        return self._released

    def _is_beyond(self, packet: Publish) -> bool:
        return bool(
            packet.first & _QOS
            and len(self._in_flight) >= self._size
            and packet.packet_id not in self._in_flight
        )


_RETAIN = 0x01


class DuplicateFilter:
    """Remembers the last message of a connection."""

    __slots__ = ("_last", "_named", "delivered")

    def __init__(self) -> None:
        self._last: Publish | None = None
        self._named: set[int] = set()
        self.delivered = False

    def is_duplicate(self, packet: Publish) -> bool:
        """Take a message; say whether it is a copy of one that was delivered."""
        last = self._last
        numbers = packet.properties.subscription_identifiers
        if (
            last is not None
            and not packet.first & _RETAIN
            and packet.topic_field == last.topic_field
            and packet.payload == last.payload
            and packet.properties.kept == last.properties.kept
            and packet.properties.reserved == last.properties.reserved
            and self._named.isdisjoint(numbers)
        ):
            self._named.update(numbers)
            return self.delivered
        self._last = packet
        self._named = set(numbers)
        self.delivered = False
        return False
