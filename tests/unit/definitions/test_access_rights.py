"""Rights of people: given to them or to their groups, and to nobody else."""

from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import find_right
from penstock.errors import InvalidError

HOUSE = """
kind: event
name: Fall
attributes: {pid: string}
packet: {filters: [fall], set: {pid: t.user}}
---
kind: plan
name: fall
situations: [{id: Fallen, level: 1}]
evolutions: [{event: Fall, to: Fallen}]
---
kind: scenario
name: fall
plan: fall
attribute: pid
---
kind: group
name: nurses
members: [user:ann, client:bed-1]
---
kind: group
name: staff
includes: [nurses]
---
kind: right
name: glass
subjects: [SUBJECT]
break_glass: [fall]
"""


def build(subject: str) -> DefinitionSet:
    return DefinitionSet.build(read_text(HOUSE.replace("SUBJECT", subject)).documents)


@pytest.mark.parametrize(
    ("subject", "who"),
    [
        ("user:ann", {"ann"}),
        ("group:nurses", {"ann"}),
        ("group:staff", {"ann"}),
        ("user:bob", {"bob"}),
    ],
)
def test_a_right_is_of_who_is_named_or_in_a_named_group(subject: str, who: set[str]) -> None:
    definitions = build(subject)
    has = {
        it
        for it in ("ann", "bob", "bed-1", "nurses", "anyone")
        if find_right(definitions, it, lambda right: "fall" in right.break_glass) == "glass"
    }
    assert has == who
    assert find_right(definitions, "ann", lambda right: bool(right.detokenize)) is None


@pytest.mark.parametrize("subject", ["anyone", "client:bed-1"])
def test_breaking_the_glass_is_for_people(subject: str) -> None:
    with pytest.raises(InvalidError, match="break_glass is for people who prove who they are"):
        build(subject)


def test_who_is_blocked_has_no_right() -> None:
    blocked = "---\nkind: user\nname: ann\nblocked: true\n"
    text = HOUSE.replace("SUBJECT", "user:ann") + blocked
    definitions = DefinitionSet.build(read_text(text).documents)
    assert find_right(definitions, "ann", lambda right: "fall" in right.break_glass) is None
