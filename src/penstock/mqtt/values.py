"""The types that a property's value can have: how each is read and written.

Rules that hold here:
- `read` takes the bytes of a property list and the place of the value, and gives the value
  and the place behind it; that place may lie behind the end, which is for the caller to see.
- A value that is cut off raises IndexError, ill-formed text UnicodeDecodeError; a value that
  is not allowed raises an `MqttError` whose message goes on after the property's name.
- This is on the way of every message with properties that are new: no cursor, no classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.errors import UsageError, quote
from penstock.mqtt.errors import (
    MalformedPacketError,
    ProtocolError,
    TopicAliasError,
    TopicNameError,
)
from penstock.mqtt.kinds import PACKET_SIZE_LIMIT
from penstock.mqtt.wire import FIELD_LIMIT, encode_binary, encode_text, encode_varint, read_varint


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
    if (not topic or "#" in topic or "+" in topic) and stop <= len(data):
        raise TopicNameError("is no topic: it is empty or holds a wildcard")
    return topic, stop


def _write_topic(topic: str, name: str) -> bytes:
    if not topic or "#" in topic or "+" in topic:
        raise UsageError(f"property {name} is no topic", fix="name one topic without wildcards")
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
