from __future__ import annotations

import itertools

import pytest

from penstock.cep.event_binding import TopicIndex, WatchedTopics
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.model.topics import matches

EVENTS = """
kind: vocabulary
name: v
payload: {hot: bool}
---
kind: event
name: Filtered
attributes: {level: string}
packet: {filters: ["a/+/b"], set: {level: t.topic}}
---
kind: event
name: Named
attributes: {level: string}
packet: {when: 't.topic.includes("warmth")', set: {level: t.topic}}
---
kind: event
name: Looking
attributes: {level: string}
packet: {filters: ["c/#"], when: t.payload.hot, set: {level: t.topic}}
"""

FILTERS = ["#", "+", "a", "a/#", "a/+", "a/b", "+/b", "+/+", "a/+/#", "$sys/#", "$sys/+", "/", "/+"]


def test_topics_find_the_filters_that_match_them() -> None:
    index: TopicIndex[str] = TopicIndex()
    for filter_ in FILTERS:
        index.add(filter_, filter_)
    levels = ["", "a", "b", "$sys"]
    topics = [
        "/".join(way) for count in (1, 2, 3) for way in itertools.product(levels, repeat=count)
    ]
    for topic in filter(None, topics):
        assert index.find(topic) == [it for it in FILTERS if matches(it, topic)], topic


@pytest.mark.parametrize(
    ("topic", "seen"),
    [
        ("a/x/b", True),
        ("a/x/c", False),
        ("any/warmth", True),
        ("any/cold", False),
        ("c", True),
        ("c/d/e", True),
        ("$c/warmth", False),
    ],
)
def test_a_topic_is_watched_if_a_message_on_it_could_be_an_event(topic: str, *, seen: bool) -> None:
    definitions = DefinitionSet.build(read_text(EVENTS).documents)
    watch = WatchedTopics(compile_program(definitions.definitions))
    assert watch
    assert watch.matches(topic) is watch.matches(topic) is seen


def test_without_events_nothing_is_watched() -> None:
    watch = WatchedTopics(Program())
    assert not watch
    assert not watch.matches("a")
