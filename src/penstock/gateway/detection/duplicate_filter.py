"""Messages of QoS 2 that a client sends once more, so that no event counts twice.

Rules that hold here:
- A message is a repeated one if it says so (DUP), and is equal to the last one that was an
  event under its client and packet identifier. It is authorised and passed on as any other;
  the broker knows it by its identifier. Only detection leaves it out.
- Whoever detects knows them, for the clients of all gateways. They are in the journal together
  with the step that they are about: both outlive a crash, or neither does.
- With QoS 1 a message may count more than once: events that must not have an `id`.
- So many are remembered, the oldest are forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.mqtt import Publish

LIMIT: Final = 65_536
_EXACTLY_ONCE: Final = 0x04
_DUPLICATE: Final = 0x08
_LINE: Final = b"#once "


class Fingerprint(NamedTuple):
    """Tells a message of QoS 2 from others."""

    place: str
    """A digest of the client and the packet identifier."""
    content: str
    """A digest of what it says, and where."""
    again: bool
    """Whether it says that it was sent before."""

    def line(self) -> bytes:
        """Return what the journal keeps."""
        return _LINE + f"{self.place} {self.content}".encode("ascii")


def fingerprint_of(user: str | None, client: str, packet: Publish) -> Fingerprint | None:
    """Return the mark of a message; None where it may count more than once."""
    if not packet.first & _EXACTLY_ONCE or not packet.packet_id:
        return None
    place = f"{user or ''}\0{client}\0{packet.packet_id}".encode("utf-8", "surrogatepass")
    content = len(packet.topic_field).to_bytes(4, "big") + packet.topic_field + packet.payload
    return Fingerprint(_digest(place), _digest(content), bool(packet.first & _DUPLICATE))


class DuplicateFilter:
    """The last messages of QoS 2 that were events, by client and packet identifier."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = dict(known or {})

    def has(self, mark: Fingerprint) -> bool:
        """Say whether a message was an event before."""
        return mark.again and self.known.get(mark.place) == mark.content

    def put(self, mark: Fingerprint) -> None:
        """Remember a message that was an event."""
        self.known.pop(mark.place, None)
        self.known[mark.place] = mark.content
        if len(self.known) > LIMIT:
            del self.known[next(iter(self.known))]

    def replay(self, line: bytes) -> bool:
        """Repeat what the journal kept, if it is about a message of QoS 2."""
        if not line.startswith(_LINE):
            return False
        place, content = line[len(_LINE) :].decode("ascii").split(" ")
        self.put(Fingerprint(place, content, again=False))
        return True


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
