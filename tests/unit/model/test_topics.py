"""What is a topic, what a filter, and the rules people get wrong."""

from __future__ import annotations

import pytest

from penstock.model.topics import (
    TOPIC_LIMIT,
    SubscribedFilter,
    TopicError,
    check_filter,
    check_topic,
    covers,
    decode_topic,
    matches,
    overlaps,
    parse_subscribed,
)


@pytest.mark.parametrize(
    "text", ["a", "/", "//", "a/b/c", " ", "$SYS/x", "ü/é", "\ufeffa", "a\x01"]
)
def test_topics_that_stand(text: str) -> None:
    assert check_topic(text) == text
    assert check_filter(text) == text


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", "x" * (TOPIC_LIMIT + 1), "é" * 32_768])
def test_texts_that_are_neither_topic_nor_filter(text: str) -> None:
    with pytest.raises(TopicError):
        check_topic(text)
    with pytest.raises(TopicError):
        check_filter(text)


def test_the_limit_counts_bytes() -> None:
    check_topic("x" * TOPIC_LIMIT)
    check_topic("é" * 32_767)


@pytest.mark.parametrize("text", ["#", "+", "a/#", "a/+/b", "+/+/#", "/+", "$SYS/#", "/#"])
def test_wildcards_stand_in_filters_only(text: str) -> None:
    assert check_filter(text) == text
    with pytest.raises(TopicError, match="wildcard"):
        check_topic(text)


@pytest.mark.parametrize("text", ["a#", "#a", "a/#/b", "#/", "##", "a+", "+a/b", "++", "a/b+/c"])
def test_misplaced_wildcards_are_refused_with_the_fix(text: str) -> None:
    with pytest.raises(TopicError) as caught:
        check_filter(text)
    assert repr(text) in caught.value.message
    assert "stand alone" in (caught.value.fix or "")


def test_ill_formed_bytes_are_refused_and_nothing_is_normalised() -> None:
    with pytest.raises(TopicError, match="not UTF-8"):
        decode_topic(b"a/\xff")
    with pytest.raises(TopicError, match="not UTF-8"):
        decode_topic(b"\xed\xa0\x80")  # an encoded surrogate
    assert decode_topic(b"\xef\xbb\xbfa") == "\ufeffa"
    assert not matches("\u00e9", "e\u0301")


@pytest.mark.parametrize(
    ("filter_", "topic", "expected"),
    [
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "ab", False),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/+", "/", True),
        ("/+", "/", True),
        ("+", "/", False),
        ("#", "$SYS", False),
        ("+/x", "$SYS/x", False),
        ("#", "/$SYS", True),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/#", "a", False),
        ("a/b", "a/b/c", False),
    ],
)
def test_matches(filter_: str, topic: str, expected: bool) -> None:  # noqa: FBT001
    assert matches(filter_, topic) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/+/c", "a/b/#", True),
        ("a/#", "a", True),
        ("a/+", "a", False),
        ("#", "$SYS/#", False),
        ("+/a", "$SYS/+", False),
        ("+/b", "a/+", True),
        ("a/b", "a/c", False),
    ],
)
def test_overlaps_is_symmetric(one: str, other: str, expected: bool) -> None:  # noqa: FBT001
    assert overlaps(one, other) is expected
    assert overlaps(other, one) is expected


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+/#", "a/#", False),
        ("+/#", "#", True),
        ("#", "+/#", True),
        ("#", "$SYS/x", False),
        ("$SYS/#", "$SYS/+/x", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
    ],
)
def test_covers(wide: str, narrow: str, expected: bool) -> None:  # noqa: FBT001
    assert covers(wide, narrow) is expected


def test_thousands_of_levels_do_not_overflow_the_stack() -> None:
    deep = "/".join(["+"] * 30_000)
    assert matches(deep, "/" * 29_999)
    assert overlaps(deep, "#")
    assert covers("#", deep)


def test_shared_subscriptions_keep_their_inner_filter() -> None:
    assert parse_subscribed("$share/g/a/#") == SubscribedFilter("$share/g/a/#", "a/#", "g")
    assert parse_subscribed("$share/g//x").filter == "/x"
    assert parse_subscribed("$sharex/g/a").group is None
    assert parse_subscribed("a/+").filter == "a/+"


@pytest.mark.parametrize("text", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a"])
def test_incomplete_shared_subscriptions_are_refused(text: str) -> None:
    with pytest.raises(TopicError, match="shared subscription"):
        parse_subscribed(text)
