"""Content filters found by an index, against evaluating each by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lang import BOOL, Scope, compile_expression
from penstock.model.kinds import Stream
from penstock.policy.access.requests import Message
from penstock.policy.content_filters import DIRECT, ContentFilter, ContentFilters
from penstock.policy.content_index import RangeIndex
from penstock.policy.event_types import EventTypes
from tests.support.scale import scaled

FIELDS = [
    {"name": "n", "type": "int"},
    {"name": "x", "type": "double"},
    {"name": "s", "type": "string"},
    {"name": "b", "type": "boolean"},
    {"name": "ward", "type": "string"},
]


def make_types() -> EventTypes:
    types = EventTypes()
    types.put([Stream.model_validate({"name": "v", "fields": FIELDS, "from": ["home/+ward/v"]})])
    return types


small = st.integers(-3, 3)
texts = st.sampled_from(["a", "b", "", "c d"])


def quoted(values: list[str]) -> str:
    return "[" + ", ".join(json.dumps(it) for it in values) + "]"


signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
atoms = st.one_of(
    st.builds("r.n {} {}".format, signs, small),
    st.builds("{1} {0} r.n".format, signs, small),
    st.builds("r.n {} {}.5".format, signs, st.integers(0, 3)),
    st.builds("r.x {} {}".format, signs, small),
    st.builds("r.s {} {}".format, st.sampled_from(["==", "!=", "<"]), texts.map(json.dumps)),
    st.builds("r.ward == {}".format, texts.map(json.dumps)),
    st.builds("r.s in {}".format, st.lists(texts, min_size=1, max_size=3).map(quoted)),
    st.builds("r.n in {}".format, st.lists(small, min_size=1, max_size=3).map(str)),
    st.sampled_from(["r.b", "!r.b", "r.b == true", "has(r.s)", 'r.s.contains("a")', "true"]),
    st.just("1 / r.n == 1"),
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
    ),
    max_leaves=5,
)
values = st.one_of(small, st.floats(-3, 3), texts, st.booleans(), st.none(), st.lists(small))
payloads = st.dictionaries(st.sampled_from("nxsb"), values, max_size=4)


@given(
    st.lists(expressions, min_size=1, max_size=12),
    st.lists(st.tuples(texts.filter(bool), payloads), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=scaled(30))
def test_the_index_says_what_evaluating_each_says(
    written: list[str], said: list[tuple[str, dict[str, Any]]], random: Any
) -> None:
    types = make_types()
    filters = ContentFilters(types)
    scope = Scope((("r", types.describe("home/+/v")),))
    held = [filters.hold(f"user {it}", text, "home/+/v") for it, text in enumerate(written)]
    # Some end, so that the index has had changes of both kinds.
    for number in range(len(held)):
        if random.random() < 0.3:
            held[number].end()
            held[number] = filters.hold("another", "r.n == 9", "home/+/v")
            written[number] = "r.n == 9"
    for ward, payload in said:
        message = Message(f"home/{ward}/v", json.dumps(payload).encode())
        record = types.read(Message(f"home/{ward}/v", json.dumps(payload).encode()))
        asked = list(zip(written, held, strict=True)) * (DIRECT + 1)
        for text, content in asked:
            expected = compile_expression(text, scope, BOOL).evaluate(r=record).holds
            assert filters.admits(content, message) is expected, (text, record)


bounds = st.floats(-4, 4) | st.sampled_from([float("-inf"), float("inf")])


@given(
    st.lists(st.tuples(bounds, bounds, st.booleans()), max_size=200),
    st.lists(st.floats(-5, 5), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=scaled(30))
def test_ranges_are_found_by_a_number(
    changes: list[tuple[float, float, bool]], numbers: list[float]
) -> None:
    index, model = RangeIndex(), dict[int, tuple[float, float]]()
    for serial, (low, high, gone) in enumerate(changes * 2, 1):
        index.add(serial, low, high)
        model[serial] = (low, high)
        if gone:
            oldest = next(iter(model))
            index.discard(oldest)
            del model[oldest]
    for number in numbers:
        found = list(index.holding(number))
        assert len(found) == len(set(found))
        assert set(found) == {it for it, (low, high) in model.items() if low <= number <= high}


@pytest.mark.parametrize("early", [True, False])
def test_a_filter_that_comes_after_a_look_counts(early: bool) -> None:  # noqa: FBT001
    filters = ContentFilters(make_types())
    others = [filters.hold("eve", f"r.n == {it}", "home/+/v") for it in range(20)]
    message = Message("home/a/v", b'{"n": 50}')
    if early:
        assert not any(filters.admits(it, message) for it in others)
    late = filters.hold("ann", "r.n == 50", "home/+/v")
    assert all(filters.admits(late, message) for _ in range(10))


def test_filters_end_with_whoever_holds_them() -> None:
    filters = ContentFilters(make_types())
    held: list[ContentFilter] = [
        filters.hold("ann", text, "home/+/v")
        for text in ('r.s == "a"', "r.n > 1", "r.b", 'r.s in ["a", "b"]', "r.n > 1 && r.n < 5")
    ]
    assert len(filters) == 5
    assert filters.hold("ann", "r.b", "home/+/v").compiled is held[2].compiled
    for it in held[1:]:
        it.end()
        assert not filters.admits(it, Message("home/a/v", b'{"n": 2, "s": "a", "b": true}'))
    assert len(filters) == 1
    held[0].end()
    assert len(filters) == 0
