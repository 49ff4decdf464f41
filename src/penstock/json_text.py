"""JSON objects from outside: one reader, and limits that hold for every reader.

Rules that hold here:
- Whoever decides on a payload, records it or publishes it in a view reads the same or nothing.
  Python and Spark differ in what they take; what this reader refuses, nobody believes.
- An object is UTF-8 without a byte order mark, of at most `SIZE` bytes, nested at most `DEPTH`
  deep, and nothing stands behind it. No name in it occurs twice, no number is NaN or written
  with more than `NUMBER` characters, and no text has half of a surrogate pair.
- A message that the gateway could not read is recorded behind `UNREAD`: nothing is lost, and
  no reader takes it for a record. Spark's reader has the same limits (`pipeline.records`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

SIZE: Final = 1 << 20
"""Bytes of an object."""
DEPTH: Final = 100
"""Objects and lists within each other, the outermost included."""
NUMBER: Final = 1000
"""Characters of a number."""
UNREAD: Final = b"!unread "
"""Begins the record of a message that is no object to this reader."""

ERASED: Final = b"~erased~"
"""The value of a record that was erased, with spaces behind it; no JSON, and no sound Avro."""

CLOSED: Final = b"~closed~"
"""The value of a sealed record for whose content no key is held."""
FORGED: Final = b"~forged~"
"""The value of a record that does not open as its stream is sealed."""

# All that numbers are written with becomes 0, all else a space: what is long is found at once.
_DIGITS: Final = bytes(48 if chr(it) in "0123456789+-.eE" else 32 for it in range(256))
_LONG: Final = b"0" * (NUMBER + 1)
_CONTAINERS: Final = (dict, list)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def _take_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _limited(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader of numbers that refuses long ones."""

    def run(text: str) -> Any:
        if len(text) > NUMBER:
            raise ValueError("a number is too long")
        return read(text)

    return run


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_take_once, parse_constant=_refuse)
_CAREFUL: Final = json.JSONDecoder(
    object_pairs_hook=_take_once,
    parse_constant=_refuse,
    parse_int=_limited(int),
    parse_float=_limited(float),
)


def read_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None where it is none."""
    if len(content) > SIZE or not content.lstrip(b" \t\r\n").startswith(b"{"):
        return None
    long = len(content) > NUMBER and _LONG in content.translate(_DIGITS)
    decoder = _CAREFUL if long else _DECODER
    try:
        found = decoder.decode(content.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or _is_too_deep(found, content):
        return None
    if _SURROGATE.search(content) and not _is_unicode(found):
        return None
    return found


def _is_too_deep(found: dict[str, Any], content: bytes) -> bool:
    if content.count(b"{") + content.count(b"[") <= DEPTH:
        return False
    level: list[Any] = [found]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
    return bool(level)


def _is_unicode(found: dict[str, Any]) -> bool:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
