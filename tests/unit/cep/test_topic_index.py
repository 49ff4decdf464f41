from __future__ import annotations

import itertools

from penstock.cep.topic_index import TopicIndex
from penstock.model.topics import matches

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
