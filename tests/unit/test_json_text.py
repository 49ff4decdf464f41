"""One reader of JSON objects: what it takes, and what nobody believes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.json_text import DEPTH, NUMBER, SIZE, read_object


def nest(depth: int) -> bytes:
    """Return an object that is so many levels deep."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b'"text"',
        b'{"pid": "p1", "pid": "p2"}',
        b'{"pid": "p1", "\\u0070id": "p2"}',
        b'{"in": {"a": 1, "a": 1}}',
        b'{"pulse": NaN}',
        b'{"pulse": -Infinity}',
        b'{"pid": "p1"} {"pid": "p2"}',
        b'{"pid": "\xff"}',
        b'{"pid": "\xed\xa0\x80"}',
        b'{"pid": "\\ud800"}',
        b'{"\\uDFFF": 1}',
        b'{"pid": "\\ude00\\ud83d"}',
        b'\xef\xbb\xbf{"pid": 1}',
        '{"pid": 1}'.encode("utf-16"),
        b'{"a":' * 100_000,
        nest(DEPTH + 1),
        nest(990),
        b'{"number": ' + b"9" * (NUMBER + 1) + b"}",
        b'{"in": [0.' + b"9" * NUMBER + b"]}",
        b'{"in": 1e' + b"0" * NUMBER + b"}",
        b'{"pad": "' + b"x" * SIZE + b'"}',
    ],
)
def test_what_could_be_read_in_two_ways_is_not_read(text: bytes) -> None:
    assert read_object(text) is None


@pytest.mark.parametrize(
    "text",
    [
        b" \t\r\n{} ",
        nest(DEPTH),
        b'{"a": "' + b"[" * 500 + b'", "b": [' + b"[]," * 500 + b"[]]}",
        b'{"number": ' + b"9" * NUMBER + b"}",
        b'{"text": "' + b"9" * 5000 + b'"}',
        b'{"pid": "\\ud83d\\ude00", "literally": "\\\\ud800"}',
        b'{"pad": "' + b"x" * (SIZE - 11) + b'"}',
    ],
)
def test_what_is_within_the_limits_is_read(text: bytes) -> None:
    assert read_object(text) == json.loads(text)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), values), st.integers(0, 120))
def test_objects_are_read_as_they_are_up_to_a_depth(found: dict[str, Any], more: int) -> None:
    for number in range(more):
        found = {"x": [found]} if number % 2 else {"x": found}
    expected = found if depth_of(found) <= DEPTH else None
    assert read_object(json.dumps(found).encode()) == expected
    assert read_object(json.dumps(found, ensure_ascii=False).encode()) == expected
