"""The data types of packets and properties: integers, strings, binary data, string pairs.

Rules that hold here:
- `Cursor` never reads past the end of the packet it was given; every failure names the
  packet, the field and the byte.
- Text is well-formed UTF-8 without surrogates and without NUL; a byte order mark is kept.
- A variable byte integer has at most four bytes and no redundant one.
- A `ValueType` reads and writes the value of a property. `read` takes the bytes of a property
  list and the offset of the value, and gives the value and the offset behind it; that offset
  may lie behind the end, which the caller checks. A value that is cut off raises IndexError,
  ill-formed text UnicodeDecodeError; a value that is not allowed raises an `MqttError` whose
  message goes on after the property's name.
- Every message with a property list that is new passes the value types: no cursor, no classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from penstock.errors import UsageError, quote
from penstock.mqtt.codes import (
    PACKET_SIZE_LIMIT,
    MalformedPacketError,
    ProtocolError,
    TopicAliasError,
    TopicNameError,
)

FIELD_LIMIT: Final = 65_535
"""The most bytes that a string or binary field can hold."""

_MORE = 0x80
_LOW = 0x7F
_VARINT_BYTES = 4

_NON_CHARACTERS: Final = "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
)
_NOT_ACCEPTABLE: Final = re.compile(
    f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NON_CHARACTERS}]"
)

_SHORT: Final = 2_048
_TABLE = tuple(
    bytes((value,)) if value < _MORE else bytes((value & _LOW | _MORE, value >> 7))
    for value in range(_SHORT)
)


def are_acceptable(texts: Iterable[str]) -> bool:
    """Say whether every receiver accepts these texts, which are UTF-8 (MQTT5 1.5.4)."""
    return not any(map(_NOT_ACCEPTABLE.search, texts))


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
            if not byte and count:  # MQTT5 1.5.5
                raise MalformedPacketError(
                    "a length or number has a redundant last byte",
                    fix="encode it in as few bytes as it needs",
                )
            return value, at + count + 1
    raise MalformedPacketError("a length or number is longer than four bytes")  # MQTT5 1.5.5


def encode_text(text: str, what: str) -> bytes:
    """Encode a UTF-8 string field with its length."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds a lone surrogate", fix="use well-formed text") from None
    if b"\0" in data:  # MQTT5 1.5.4
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
        raise UsageError(f"{packet_id} is not a packet identifier", fix="use 1 to 65535")
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
        if "\0" in text:  # MQTT5 1.5.4
            self.at = at + 2 + data.index(0)
            raise self.malformed(f"{what} holds U+0000")
        return text

    def packet_id(self) -> int:
        """Read a packet identifier, which is never 0."""
        value = self.two_bytes("packet identifier")
        if not value:  # MQTT5 2.2.1
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


class ValueType(NamedTuple):
    """How values of a type are read and written; `write` also gets the property's name."""

    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[Any, str], bytes]


def _number(
    width: int, least: int, most: int, error: type[ProtocolError | TopicAliasError] = ProtocolError
) -> ValueType:
    def read(data: bytes, at: int) -> tuple[int, int]:
        stop = at + width
        value = int.from_bytes(data[at:stop])
        if not least <= value <= most and stop <= len(data):
            raise error(f"is {value}, which is out of range")
        return value, stop

    def write(value: int, name: str) -> bytes:
        _check_range(value, least, most, name)
        return int(value).to_bytes(width)

    return ValueType(read, write)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    read = read_varint(data, at, len(data))
    if read is None:
        raise IndexError
    if not read[0]:
        raise ProtocolError("is 0, which is out of range")
    return read


def _write_varint(value: int, name: str) -> bytes:
    _check_range(value, 1, PACKET_SIZE_LIMIT, name)
    return encode_varint(value)


def _read_binary(data: bytes, at: int) -> tuple[bytes, int]:
    stop = at + 2 + (data[at] << 8 | data[at + 1])
    return data[at + 2 : stop], stop


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    stop = at + 2 + (data[at] << 8 | data[at + 1])
    text = data[at + 2 : stop].decode()
    if "\0" in text:
        raise MalformedPacketError("holds U+0000")
    return text, stop


def _read_topic(data: bytes, at: int) -> tuple[str, int]:
    topic, stop = _read_text(data, at)
    if (not topic or "#" in topic or "+" in topic) and stop <= len(data):  # MQTT5 3.3.2.3.5
        raise TopicNameError("is not a topic: it is empty or holds a wildcard")
    return topic, stop


def _write_topic(topic: str, name: str) -> bytes:
    if not topic or "#" in topic or "+" in topic:
        raise UsageError(f"property {name} is not a topic", fix="name one topic without wildcards")
    return encode_text(topic, name)


def _read_pair(data: bytes, at: int) -> tuple[tuple[str, str], int]:
    # Twice `_read_text`, written out: this is the type that messages carry most.
    middle = at + 2 + (data[at] << 8 | data[at + 1])
    stop = middle + 2 + (data[middle] << 8 | data[middle + 1])
    name = data[at + 2 : middle].decode()
    text = data[middle + 2 : stop].decode()
    if "\0" in name or "\0" in text:
        raise MalformedPacketError("holds U+0000")
    return (name, text), stop


def _write_pair(pair: tuple[str, str], name: str) -> bytes:
    return encode_text(pair[0], f"name of {name}") + encode_text(pair[1], f"value of {name}")


def _check_range(value: int, least: int, most: int, name: str) -> None:
    if not least <= value <= most:
        raise UsageError(f"property {name} is {quote(value)}", fix=f"use {least} to {most}")


FLAG: Final = _number(1, 0, 1)
TWO_BYTES: Final = _number(2, 0, FIELD_LIMIT)
TWO_BYTES_NOT_ZERO: Final = _number(2, 1, FIELD_LIMIT)
TOPIC_ALIAS: Final = _number(2, 1, FIELD_LIMIT, TopicAliasError)
FOUR_BYTES: Final = _number(4, 0, 0xFFFF_FFFF)
FOUR_BYTES_NOT_ZERO: Final = _number(4, 1, 0xFFFF_FFFF)
VARINT_NOT_ZERO: Final = ValueType(_read_varint, _write_varint)
BINARY: Final = ValueType(_read_binary, encode_binary)
TEXT: Final = ValueType(_read_text, encode_text)
TOPIC: Final = ValueType(_read_topic, _write_topic)
PAIR: Final = ValueType(_read_pair, _write_pair)
