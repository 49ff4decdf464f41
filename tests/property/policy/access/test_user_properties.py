"""What conditions see of user properties never differs from what every reader sees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lang import build_scope, compile_expression
from penstock.policy.access.requests import RepeatedPropertyError, collect, guard

Pairs = list[tuple[str, str]]
NAMES = st.sampled_from(["x", "y", "z"])
PAIRS = st.lists(st.tuples(NAMES, st.sampled_from(["a", "b", ""])), max_size=5)
SCOPE = build_scope()


def readings(pairs: Pairs) -> set[tuple[tuple[str, str], ...]]:
    """Return every way to read them, taking one of the values of a name."""
    ways: set[tuple[tuple[str, str], ...]] = {()}
    for name in {name for name, _ in pairs}:
        values = [value for other, value in pairs if other == name]
        ways = {(*way, (name, value)) for way in ways for value in values}
    return ways


def ask(text: str, properties: Any) -> Any:
    return compile_expression(text, SCOPE).function({}, {}, {}, {"properties": properties})


@given(PAIRS, NAMES, st.sampled_from(["a", "b", ""]))
def test_a_condition_has_the_answer_of_every_reading_or_none(
    pairs: Pairs, name: str, value: str
) -> None:
    repeated = [it for it, _ in pairs].count(name) > 1
    for text in (
        f't.properties.{name} == "{value}"',
        f't.properties["{name}"] != "{value}"',
        f"has(t.properties.{name})",
        f"!has(t.properties.{name})",
    ):
        seen = guard(collect(pairs))
        if repeated:
            with pytest.raises(RepeatedPropertyError):
                ask(text, seen)
        else:
            assert {ask(text, dict(way)) for way in readings(pairs)} == {ask(text, seen)}


@given(PAIRS)
def test_the_properties_as_a_whole_are_told_only_where_no_name_repeats(pairs: Pairs) -> None:
    seen = guard(collect(pairs))
    if len(dict(pairs)) == len(pairs):
        assert dict(seen) == dict(pairs)
        assert ask("size(t.properties) == 0", seen) == (not pairs)
    else:
        with pytest.raises(RepeatedPropertyError):
            ask("size(t.properties) == 0", seen)
        with pytest.raises(RepeatedPropertyError):
            dict(seen)
