"""Stored states: problems are found, all of them, before anything changes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.model.purposes import PurposeSet
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.purpose_state import PurposeState, read_state, write_state


def stored() -> dict[str, Any]:
    engine = PurposeEngine()
    engine.reserve("a/#", PurposeSet.of(["x"], ["y"]))
    engine.reserve("b", PurposeSet())
    engine.presubscribe("client", "a/#", "x")
    engine.subscribe("client", "a/#", None, 2, options=4, identifier=9)
    engine.subscribe("client", "$share/g/b", "x")
    return engine.export_state()


def test_what_is_written_reads_back() -> None:
    data = stored()
    assert write_state(read_state(data)) == data
    assert write_state(read_state({"format": 1})) == write_state(PurposeState())


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("format", 2, "format"),
        ("settings", {"mode": True}, "no setting"),
        ("settings", {"auto_persist": "yes"}, "not of type bool"),
        ("settings", "all", "no setting"),
        ("reservations", {"a": "{x}"}, "write a list"),
        ("reservations", [["a", "{}"]], "leave it out"),
        ("reservations", [["a/#/b", "{x}"]], "continues after"),
        ("reservations", [["a"]], "1 parts"),
        ("reservations", [["a", 3]], "not of type str"),
        ("reservations", [["a", "{x"]], "braces"),
        ("presubscriptions", [["c", "a", ""]], "empty"),
        ("subscriptions", [{"client": "c", "filter": "a", "ap": None, "qos": 3}], "QoS"),
        ("subscriptions", [{"client": "c", "filter": "a", "qos": True}], "not of type int"),
        ("subscriptions", [{"filter": "a", "qos": 0}], "not of type str"),
        ("subscriptions", [{"client": "c", "filter": "a", "qos": 0}] * 2, "twice"),
        (
            "subscriptions",
            [
                {"client": "c", "filter": "$share/g/a", "qos": 0, "ap": "x"},
                {"client": "d", "filter": "$share/g/a", "qos": 0, "ap": "y"},
            ],
            "differ in purpose",
        ),
    ],
)
def test_problems_are_named(part: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        read_state({**stored(), part: value})
    assert message in str(caught.value)


def test_several_problems_at_once() -> None:
    with pytest.raises(InvalidError) as caught:
        read_state({"format": 1, "reservations": [["", "{x}"], ["a", ""]], "settings": {"x": 1}})
    assert [problem.place for problem in caught.value.problems] == [
        "settings.x",
        "reservations[0]",
        "reservations[1]",
    ]
    with pytest.raises(InvalidError):
        read_state([])
