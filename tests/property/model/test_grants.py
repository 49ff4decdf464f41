"""Grants against a naive model: a grant is the set of requests that it allows."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.grants import ACTIONS, Grant, Value, narrow, parse_grant

NAMES = ("a", "ab", "abc", "b")
PATTERNS = (*NAMES, "*", "a*", "ab*", "abc*", "b*")
ATTRIBUTES = ("plate", "speed", "place")
VALUES: tuple[Value, ...] = (1, 2, "1", True)
CONTENTS = [
    {name: value for name, value in zip(ATTRIBUTES, values, strict=True) if value is not None}
    for values in product((None, 1, 2, "1", True), repeat=3)
]

values = st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from(VALUES), max_size=2)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    if draw(st.booleans()):
        actions = draw(st.sets(st.sampled_from(sorted(ACTIONS["network"])), min_size=1))
        return Grant("network", draw(st.sampled_from(PATTERNS)), frozenset(actions))
    fixed = draw(values)
    named = draw(st.none() | st.sets(st.sampled_from(ATTRIBUTES), min_size=1))
    return Grant(
        "type",
        draw(st.sampled_from(PATTERNS)),
        frozenset(draw(st.sets(st.sampled_from(("publish", "subscribe", "extend")), min_size=1))),
        None if named is None else frozenset(named | fixed.keys()),
        tuple(sorted(fixed.items())),
    )


def allowed(grant: Grant) -> set[tuple[str, str, str, str, int]]:
    """Every single thing that a grant allows: an attribute of a message of a type, by an action."""
    found: set[tuple[str, str, str, str, int]] = set()
    for name, action, attribute in product(NAMES, grant.actions, ATTRIBUTES):
        begins = grant.name.endswith("*") and name.startswith(grant.name[:-1])
        if not begins and name != grant.name:
            continue
        if grant.attributes is not None and attribute not in grant.attributes:
            continue
        for at, content in enumerate(CONTENTS):
            if all(
                key in content and type(content[key]) is type(value) and content[key] == value
                for key, value in grant.values
            ):
                found.add((grant.resource, name, action, attribute, at))
    return found


@given(grants(), grants())
def test_a_grant_covers_another_only_if_it_allows_all_that_the_other_does(
    wide: Grant, narrow_one: Grant
) -> None:
    if wide.covers(narrow_one):
        assert allowed(narrow_one) <= allowed(wide)


@given(grants(), grants())
def test_what_is_allowed_in_every_respect_is_covered(wide: Grant, other: Grant) -> None:
    # The other way round, where no name is left out by chance of this small universe.
    probe = allowed(other)
    if probe and probe <= allowed(wide) and not other.name.endswith("*"):
        assert wide.covers(other) or (
            other.attributes is None and wide.attributes == frozenset(ATTRIBUTES)
        )


@given(st.lists(grants(), max_size=3), st.lists(grants(), max_size=3))
def test_narrowing_finds_what_goes_beyond(held: list[Grant], wanted: list[Grant]) -> None:
    found = narrow(held, wanted)
    if found is None:
        together: set[tuple[str, str, str, str, int]] = set().union(*map(allowed, held))
        assert all(allowed(it) <= together for it in wanted)
    else:
        assert found in wanted


@given(grants())
def test_the_text_reads_back(grant: Grant) -> None:
    assert parse_grant(str(grant)) == grant
    assert str(parse_grant(str(grant))) == str(grant)


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.floats(-1e9, 1e9))
def test_any_attribute_and_value_reads_back(name: str, text: str, number: float) -> None:
    grant = Grant("type", "a", frozenset({"publish"}), frozenset({name}), ((name, text),))
    assert parse_grant(str(grant)) == grant
    rounded = round(number, 6)
    fixed = grant._replace(values=((name, rounded),))
    assert parse_grant(str(fixed)) == fixed
