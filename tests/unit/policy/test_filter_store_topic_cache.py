"""What the cache keeps, forgets and refuses to keep."""

from __future__ import annotations

import pytest

from penstock.model.topics import TopicError
from penstock.policy.filter_store import LONGEST_TOPIC, TopicCache


class Source:
    """Counts how often each topic is worked out."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def work_out(self, topic: str) -> str:
        self.asked.append(topic)
        return topic.upper()


def make(limit: int = 100) -> tuple[TopicCache[str], Source]:
    source = Source()
    return TopicCache(source.work_out, limit), source


def test_a_topic_is_worked_out_once_per_form() -> None:
    cache, source = make()
    assert [cache["a/b"], cache["a/b"], cache[b"a/b"], cache[b"a/b"]] == ["A/B"] * 4
    assert source.asked == ["a/b", "a/b"]


def test_forgetting_drops_both_forms_of_exactly_the_topics_that_match() -> None:
    cache, source = make()
    for topic in ("a/b", "a/c", "a", "b/c", "$s/b"):
        assert cache[topic] == cache[topic.encode()]
    cache.forget("+/b")
    assert sorted(map(str, cache)) == sorted(
        map(str, ["a/c", b"a/c", "a", b"a", "b/c", b"b/c", "$s/b", b"$s/b"])
    )
    cache.forget("a/#")
    assert set(cache) == {"b/c", b"b/c", "$s/b", b"$s/b"}
    del source.asked[:]
    assert cache["a"] == "A"
    assert source.asked == ["a"]


def test_the_oldest_is_pushed_out() -> None:
    cache, _ = make(limit=2)
    for topic in ("a", "b", "c"):
        assert cache[topic]
    assert set(cache) == {"b", "c"}


def test_pushing_out_one_form_leaves_the_other_to_be_forgotten() -> None:
    cache, _ = make(limit=2)
    assert cache["a"] == cache[b"a"]
    assert cache["b"]
    assert set(cache) == {b"a", "b"}
    cache.forget("a")
    assert set(cache) == {"b"}


def test_forgetting_and_asking_again_does_not_grow_without_bound() -> None:
    cache, _ = make(limit=3)
    for _ in range(50):
        assert cache["a"]
        cache.forget("a")
    assert len(cache._order) <= 3
    assert len(cache._index) == 0


def test_long_topics_are_answered_but_not_kept() -> None:
    cache, source = make()
    long = "x" * (LONGEST_TOPIC + 1)
    assert cache[long] == cache[long] == long.upper()
    assert source.asked == [long, long]
    assert not cache


def test_without_room_nothing_is_kept() -> None:
    cache, _ = make(limit=0)
    assert cache["a"] == "A"
    assert not cache


def test_forgetting_all() -> None:
    cache, _ = make()
    assert cache["a"] == "A"
    cache.forget_all()
    assert not cache
    assert len(cache._index) == len(cache._order) == 0


def test_bytes_that_are_no_text_are_refused() -> None:
    cache, _ = make()
    with pytest.raises(TopicError):
        cache[b"\xff"]
