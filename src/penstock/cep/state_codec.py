"""How rows, groups and packets become JSON data and come back.

Rules that hold here:
- JSON has no moments and no durations: they are written as {"$t": microseconds since
  1970} and {"$d": microseconds}. No other map of an event has such a key alone.
- Whole texts are compact JSON; snapshots are compressed.
"""

from __future__ import annotations

import json
import zlib
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.cep.context import Key, Row
from penstock.errors import PenstockError
from penstock.lang.scalars import EPOCH, MICROSECOND

_TIME: Final = "$t"
_DURATION: Final = "$d"


class StateError(PenstockError):
    """A saved state or a record of a step cannot be taken back."""


def pack(value: Any) -> Any:
    """Return a value as JSON data."""
    if isinstance(value, datetime):
        return {_TIME: (value - EPOCH) // MICROSECOND}
    if isinstance(value, timedelta):
        return {_DURATION: value // MICROSECOND}
    if isinstance(value, dict):
        return {name: pack(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(pack(item) for item in value)
    return value


def unpack(value: Any) -> Any:
    """Return the value that JSON data stands for."""
    if isinstance(value, dict):
        if len(value) == 1:
            if _TIME in value:
                return EPOCH + value[_TIME] * MICROSECOND
            if _DURATION in value:
                return value[_DURATION] * MICROSECOND
        return {name: unpack(item) for name, item in value.items()}
    if isinstance(value, list):
        return [unpack(item) for item in value]
    return value


def pack_key(key: Key) -> Any:
    """Return a group as JSON data; a tuple stays apart from a list."""
    return {"": [pack(part) for part in key]} if isinstance(key, tuple) else pack(key)


def unpack_key(data: Any) -> Key:
    """Return the group that JSON data stands for."""
    if isinstance(data, dict) and "" in data:
        return tuple(unpack(part) for part in data[""])
    return unpack(data)


def pack_row(row: Row) -> Any:
    """Return a row as JSON data."""
    return [row.uid, row.at, pack(row.values)]


def unpack_row(data: Any) -> Row:
    """Return the row that JSON data stands for."""
    uid, at, values = data
    return Row(uid, at, unpack(values))


def _pack_strange(value: Any) -> Any:
    """Return what JSON does not have as JSON data, as `pack` does."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(pack, value))
    packed = pack(value)
    if packed is value:
        raise TypeError(f"{type(value).__name__} is no value of events")
    return packed


# Made once, since making one takes as long as writing a record.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_pack_strange).encode


def write(data: Any) -> bytes:
    """Return JSON data as compact text; values need not be packed before."""
    return _encode(data).encode()


def read(text: bytes) -> Any:
    """Return the JSON data of a text."""
    try:
        return json.loads(text)
    except ValueError:
        raise StateError(
            "a record of a step is not JSON", fix="go back to an earlier snapshot"
        ) from None


def compress(data: Any) -> bytes:
    """Return JSON data as compressed text."""
    return zlib.compress(write(data), 1)


def expand(data: bytes) -> Any:
    """Return the JSON data of compressed text."""
    try:
        return read(zlib.decompress(data))
    except zlib.error:
        raise StateError(
            "a snapshot of events is damaged", fix="go back to an earlier snapshot"
        ) from None
