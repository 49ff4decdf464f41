"""Messages of QoS 2 that a client sends once more, so that no event counts twice.

Rules that hold here:
- A message is a repeated one if it says so (DUP), and is equal to the last one that this
  client sent under its packet identifier. It is authorised and passed on as any other; the
  broker knows it by its identifier. Only detection leaves it out.
- With QoS 1 a message may count more than once: events that must not have an `id`.
- So many are remembered, the oldest are forgotten.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from penstock.mqtt import Publish

if TYPE_CHECKING:
    from penstock.gateway.session import Session

_LIMIT: Final = 65_536
_EXACTLY_ONCE: Final = 0x04
_DUPLICATE: Final = 0x08


class Repeats:
    """The last messages of QoS 2 that were events, by client and packet identifier."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], bytes] = {}

    def has(self, session: Session, packet: Publish) -> bool:
        """Say whether a message was an event before."""
        if packet.first & (_EXACTLY_ONCE | _DUPLICATE) != _EXACTLY_ONCE | _DUPLICATE:
            return False
        known = self._known.get((session.principal, session.client_id, packet.packet_id))
        return known is not None and known == _digest(packet)

    def note(self, session: Session, packet: Publish) -> None:
        """Remember a message that was an event."""
        if not packet.first & _EXACTLY_ONCE:
            return
        key = (session.principal, session.client_id, packet.packet_id)
        self._known.pop(key, None)
        self._known[key] = _digest(packet)
        if len(self._known) > _LIMIT:
            del self._known[next(iter(self._known))]

    def forget(self, session: Session, packet: Publish) -> None:
        """Take note that a message was no event after all: it did not become durable."""
        self._known.pop((session.principal, session.client_id, packet.packet_id), None)


def _digest(packet: Publish) -> bytes:
    made = hashlib.blake2b(packet.topic_field, digest_size=16)
    made.update(packet.payload)
    return made.digest()
