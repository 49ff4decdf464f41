"""Messages as Live shows them: JSON indented, and never much longer than it came."""

from __future__ import annotations

import pytest

from penstock.console.pages.live import _INDENTED, _tell
from penstock.console.tails import SeenMessage


def seen(payload: bytes) -> SeenMessage:
    return SeenMessage(1, 0.0, "ward/1", payload, len(payload), retained=False)


def test_json_is_indented() -> None:
    assert _tell(seen(b'{"pulse": 70}')).text == '{\n  "pulse": 70\n}'


@pytest.mark.parametrize("depth", [100, 900, 2_000])
def test_what_is_nested_deeply_stays_as_it_came_where_it_would_grow(depth: int) -> None:
    payload = b"[" * depth + b"]" * depth
    text = _tell(seen(payload)).text
    assert len(text) <= _INDENTED
    assert text == payload.decode() or depth == 100
