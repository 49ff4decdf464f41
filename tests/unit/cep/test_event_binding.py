from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest

from penstock.cep.event_binding import make_reader
from penstock.cep.program import Assignment
from penstock.lang import build_scope, compile_expression

SCOPE = build_scope(
    o={"b": "bool", "i": "int", "d": "double", "s": "string", "t": "timestamp", "l": "list(int)"},
    payload={"d": "double"},
)
PATHS = ["o.b", "o.i", "o.d", "o.s", "o.t", "o.l", "t.payload.d", "o.i + 1"]
SETTINGS = [Assignment(f"v{n}", compile_expression(path, SCOPE)) for n, path in enumerate(PATHS)]
MOMENT = datetime(2026, 3, 1, 8, tzinfo=UTC)
VALUES = [
    *(None, True, False, 0, 1, -(2**63), 2**63, 2**63 - 1, 37, 37.5, float("nan"), float("inf")),
    *("", "text", "Grüße", "\ud800", MOMENT, MOMENT.replace(tzinfo=None), [1], (2,), {}, {"d": 1}),
    *(MOMENT.astimezone(timezone(timedelta(hours=2))), timedelta(1), 2**53 + 1, b"bytes"),
]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_read_as_their_expressions_say(value: Any) -> None:
    read = make_reader(SETTINGS, frozenset(assignment.name for assignment in SETTINGS), "soet")
    everything = dict.fromkeys("bidstl", value)
    for o in (everything, MappingProxyType(everything), value, None, {}):
        for payload in ({"d": value}, value):
            roots: tuple[Any, ...] = ({}, o, {}, {"payload": payload})
            expected = {it.name: it.value.function(*roots) for it in SETTINGS}
            assert read(*roots) == expected


def test_an_event_lacks_nothing_that_is_needed() -> None:
    assignments = [SETTINGS[3], SETTINGS[1]]
    assert make_reader(assignments, frozenset(), "soet")({}, {"s": "x"}, {}, {}) is None
    some = make_reader(assignments, frozenset({"v1"}), "soet")
    assert some({}, {"s": "x"}, {}, {}) == {"v3": "x", "v1": None}
