"""Duplicates of one message: what a client of MQTT 3.1.1 gets once.

Towards MQTT 5 some brokers send a message once for each subscription that it matches, one
copy after the other, each with the identifier of its subscription (MQTT5 3.3.4 allows both).
The same brokers send clients of 3.1.1 one copy, and the gateway always is a client of MQTT 5.

Rules that hold here:
- A copy follows its message at once, equals it, and names subscriptions that were not named
  for that message yet. The same message published twice names them again, so it is no copy.
- The first copy that may be delivered is; the others are acknowledged to the broker.
- Retained messages are sent once for each subscription that asks for them, in any version.
"""

from __future__ import annotations

from penstock.mqtt import Publish

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
