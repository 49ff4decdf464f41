"""Filters against the list of all topics over a small alphabet: nothing cleverer than lookup."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.topics import check_filter, check_topic, covers, matches, overlaps
from tests.support.scale import scaled

NAMES = ["", "a", "b", "$s"]
DEPTH = 4
# One level deeper and one name wider than any filter drawn below, so that a topic which
# tells two filters apart is always among them. The empty topic counts, see the module.
TOPICS = [
    "/".join(levels)
    for depth in range(1, DEPTH + 1)
    for levels in product([*NAMES, "other"], repeat=depth)
]


def filters() -> st.SearchStrategy[str]:
    head = st.lists(st.sampled_from([*NAMES, "+", "+"]), max_size=DEPTH - 1)
    return st.builds(
        lambda levels, tail: "/".join([*levels, *tail]), head, st.sampled_from([[], ["#"]])
    ).filter(bool)


def naive_match(filter_: list[str], topic: list[str]) -> bool:
    if filter_ == ["#"]:
        return True
    if not filter_ or not topic:
        return not filter_ and not topic
    return filter_[0] in ("+", topic[0]) and naive_match(filter_[1:], topic[1:])


@cache
def naive(filter_: str) -> set[str]:
    return {
        topic
        for topic in TOPICS
        if not (topic[:1] == "$" and filter_[0] in "+#")
        and naive_match(filter_.split("/"), topic.split("/"))
    }


def test_the_alphabet_is_made_of_topics() -> None:
    assert len(TOPICS) == 5 + 25 + 125 + 625
    assert [check_topic(topic) for topic in TOPICS if topic] == TOPICS[1:]


@given(filters())
@settings(max_examples=scaled(300))
def test_matches_agrees_with_enumeration(filter_: str) -> None:
    assert {topic for topic in TOPICS if matches(check_filter(filter_), topic)} == naive(filter_)


@given(filters(), filters())
@settings(max_examples=scaled(1000))
def test_overlaps_agrees_with_enumeration(one: str, other: str) -> None:
    assert overlaps(one, other) == bool(naive(one) & naive(other))


@given(filters(), filters())
@settings(max_examples=scaled(1000))
def test_covers_agrees_with_enumeration(wide: str, narrow: str) -> None:
    assert covers(wide, narrow) == (naive(narrow) <= naive(wide))
