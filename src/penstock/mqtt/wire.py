"""The data types that packets are made of: integers, strings, binary data.

Rules that hold here:
- `Cursor` never reads past the end of the packet it was given; every failure names the
  packet, the field and the byte.
- Text is well-formed UTF-8 without surrogates and without NUL; a byte order mark is kept.
- A variable byte integer has at most four bytes and no redundant one.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import UsageError
from penstock.mqtt.errors import MalformedPacketError, ProtocolError
from penstock.mqtt.kinds import PACKET_SIZE_LIMIT

FIELD_LIMIT: Final = 65_535
"""The most bytes that a string or binary field can hold."""

_MORE = 0x80
_LOW = 0x7F
_VARINT_BYTES = 4

_SHORT: Final = 2_048
_TABLE = tuple(
    bytes((value,)) if value < _MORE else bytes((value & _LOW | _MORE, value >> 7))
    for value in range(_SHORT)
)


def encode_varint(value: int) -> bytes:
    """Encode a variable byte integer."""
    if value < _SHORT:
        return _TABLE[value]
    if value > PACKET_SIZE_LIMIT:
        raise UsageError(
            f"{value} does not fit a variable byte integer",
            fix=f"keep packets below {PACKET_SIZE_LIMIT} bytes",
        )
    out = bytearray()
    while value > _LOW:
        out.append(value & _LOW | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Read a variable byte integer; give it and the place behind it, or None if cut off."""
    value = 0
    for count in range(_VARINT_BYTES):
        if at + count >= end:
            return None
        byte = data[at + count]
        value |= (byte & _LOW) << 7 * count
        if byte < _MORE:
            if not byte and count:
                raise MalformedPacketError(
                    "a length or number has a redundant last byte",
                    fix="encode it in as few bytes as it needs",
                )
            return value, at + count + 1
    raise MalformedPacketError("a length or number is longer than four bytes")


def encode_text(text: str, what: str) -> bytes:
    """Encode a UTF-8 string field with its length."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds a lone surrogate", fix="use well-formed text") from None
    if b"\0" in data:
        raise UsageError(f"{what} holds U+0000", fix="leave NUL out")
    return encode_binary(data, what)


def encode_binary(data: bytes, what: str) -> bytes:
    """Encode a binary field with its length."""
    if len(data) > FIELD_LIMIT:
        raise UsageError(f"{what} has {len(data)} bytes", fix=f"use at most {FIELD_LIMIT} bytes")
    return len(data).to_bytes(2) + data


def encode_packet_id(packet_id: int) -> bytes:
    """Encode a packet identifier."""
    if not 0 < packet_id <= FIELD_LIMIT:
        raise UsageError(f"{packet_id} is no packet identifier", fix="use 1 to 65535")
    return packet_id.to_bytes(2)


def frame(first: int, body: bytes) -> bytes:
    """Put the fixed header in front of a packet's body."""
    return bytes((first,)) + encode_varint(len(body)) + body


class Cursor:
    """Reads one packet's fields in order."""

    __slots__ = ("_data", "_end", "_start", "at", "packet")

    def __init__(self, packet: str, data: bytes, start: int, end: int) -> None:
        self.packet = packet
        self.at = start
        self._data = data
        self._start = start
        self._end = end

    @property
    def left(self) -> int:
        """How many bytes are still unread."""
        return self._end - self.at

    def place(self) -> str:
        """Say where the next byte stands, counted behind the fixed header."""
        return f"at byte {self.at - self._start}"

    def malformed(self, text: str) -> MalformedPacketError:
        """Make the error for what was found at the current place."""
        return MalformedPacketError(f"{self.packet}: {text} ({self.place()})")

    def forbidden(self, text: str) -> ProtocolError:
        """Make the error for a value that can be read but must not be there."""
        return ProtocolError(f"{self.packet}: {text} ({self.place()})")

    def take(self, count: int, what: str) -> bytes:
        """Read a number of bytes."""
        end = self.at + count
        if end > self._end:
            raise self.malformed(f"{what} needs {count} bytes, {self.left} are left")
        data = self._data[self.at : end]
        self.at = end
        return data

    def byte(self, what: str) -> int:
        """Read a one byte integer."""
        return self.take(1, what)[0]

    def two_bytes(self, what: str) -> int:
        """Read a two byte integer."""
        return int.from_bytes(self.take(2, what))

    def varint(self, what: str) -> int:
        """Read a variable byte integer."""
        try:
            read = read_varint(self._data, self.at, self._end)
        except MalformedPacketError:
            raise self.malformed(f"{what} is no variable byte integer") from None
        if read is None:
            raise self.malformed(f"{what} is cut off")
        value, self.at = read
        return value

    def binary(self, what: str) -> bytes:
        """Read binary data with its length."""
        return self.take(self.two_bytes(what), what)

    def text(self, what: str) -> str:
        """Read a UTF-8 string with its length."""
        at = self.at
        data = self.binary(what)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            self.at = at + 2 + error.start
            raise self.malformed(f"{what} is ill-formed UTF-8") from None
        if "\0" in text:
            self.at = at + 2 + data.index(0)
            raise self.malformed(f"{what} holds U+0000")
        return text

    def packet_id(self) -> int:
        """Read a packet identifier, which is never 0."""
        value = self.two_bytes("packet identifier")
        if not value:
            self.at -= 2
            raise self.forbidden("packet identifier is 0")
        return value

    def rest(self) -> bytes:
        """Read all that is left."""
        return self.take(self.left, "rest")

    def finish(self) -> None:
        """Make sure that nothing is left."""
        if self.left:
            raise self.malformed(f"{self.left} bytes too many")
