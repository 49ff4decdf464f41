"""Reads and writes the pieces that Kafka's messages are made of.

Lengths of texts and lists are written plus one, in seven bits to a byte; 0 means none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from penstock.errors import UnavailableError

NO_TAGS = b"\0"
NOTHING = b"\0"
_MORE = 0x80


class Answer:
    """Reads an answer from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Read bytes."""
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise UnavailableError(
                "Kafka broke off in the middle of an answer", fix="see the broker's log"
            )
        self._at += size
        return found

    def byte(self) -> int:
        """Read a number of one byte."""
        return int(struct.unpack(">b", self.take(1))[0])

    def short(self) -> int:
        """Read a number of two bytes."""
        return int(struct.unpack(">h", self.take(2))[0])

    def long(self) -> int:
        """Read a number of four bytes."""
        return int(struct.unpack(">i", self.take(4))[0])

    def size(self) -> int:
        """Read the length of what follows, plus one; 0 means that there is nothing."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < _MORE:
                return found

    def text(self) -> str:
        """Read a text; none is an empty one."""
        length = self.size()
        return self.take(length - 1).decode() if length else ""

    def count(self) -> int:
        """Read how many items follow."""
        return max(0, self.size() - 1)

    def skip_tags(self) -> None:
        """Pass over what newer brokers may add."""
        for _ in range(self.size()):
            self.size()
            self.take(self.size())


def write_list(items: Iterable[bytes]) -> bytes:
    """Write a list."""
    found = list(items)
    return _varint(len(found) + 1) + b"".join(found)


def write_text(text: str) -> bytes:
    """Write a text."""
    return write_bytes(text.encode())


def write_bytes(data: bytes) -> bytes:
    """Write bytes."""
    return _varint(len(data) + 1) + data


def write_byte(value: int) -> bytes:
    """Write a number of one byte."""
    return struct.pack(">b", value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)
