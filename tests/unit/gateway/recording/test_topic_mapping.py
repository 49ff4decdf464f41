from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.recording.topic_mapping import MAX_VALUE, Target, TopicMapping, TopicMappings
from penstock.json_text import UNREAD, read_object
from penstock.model.document import Document, Key
from penstock.model.kinds import Stream
from penstock.model.kinds.fields import plain_filter
from penstock.model.topics import matches

FIELDS = [
    {"name": "ward", "type": "string"},
    {"name": "bed", "type": "int"},
    {"name": "patient", "type": "string"},
]
LEVELS = ["a", "b", "+", "+ward", "+bed"]

topics = st.lists(st.sampled_from(["a", "b", "c", "", "$x"]), min_size=1, max_size=4).map("/".join)


def unlike(levels: list[str]) -> bool:
    names = [level for level in levels if len(level) > 1]
    return len(names) == len(set(names))


patterns = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).filter(unlike),
    st.sampled_from([[], ["#"]]),
)


def make_stream(name: str, *given_patterns: str, **more: Any) -> Stream:
    said = {"from": list(given_patterns), **more}
    return Stream.model_validate({"name": name, "fields": FIELDS, **said})


def take(mappings: TopicMappings, *streams: Stream, gone: tuple[str, ...] = ()) -> None:
    documents: dict[Key, Document] = {it.key: it.document() for it in streams}
    mappings.take(documents, [*documents, *(Key("stream", name) for name in gone)])


@given(st.lists(st.lists(patterns, max_size=3), max_size=4), st.lists(topics, max_size=6))
def test_a_message_feeds_each_stream_by_its_first_pattern_that_fits(
    given_patterns: list[list[str]], asked: list[str]
) -> None:
    mappings = TopicMappings()
    streams = [make_stream(f"s{place}", *each) for place, each in enumerate(given_patterns)]
    take(mappings, *streams)
    for topic in asked * 2:
        found = [(mapping.target.topic, mapping.rank) for mapping in mappings.of(topic)]
        assert found == [
            (it.name, fitting[0])
            for it in streams
            if not topic.startswith("$")
            and (
                fitting := [
                    rank
                    for rank, pattern in enumerate(it.patterns)
                    if matches(plain_filter(pattern), topic)
                ]
            )
        ]


def known(mappings: TopicMappings) -> dict[str, Any] | None:
    return None if mappings.known is None else dict(mappings.known)


def test_topics_that_feed_nothing_are_known_at_a_look() -> None:
    mappings = TopicMappings()
    take(mappings, make_stream("s"))
    assert known(mappings) is None
    take(mappings, make_stream("s", "a/#"))
    assert mappings.of("b") == ()
    assert known(mappings) == {"b": ()}
    take(mappings, gone=("s",))
    assert known(mappings) is None
    assert mappings.of("a") == ()


def test_changes_of_streams_forget_what_was_known() -> None:
    mappings = TopicMappings()
    take(mappings, make_stream("s", "a"))
    assert mappings.of("b") == ()
    take(mappings, make_stream("s", "b", source="kafka"))
    assert [mapping.target for mapping in mappings.of("b")] == [Target("s", at_kafka=True)]
    assert mappings.of("a") == ()


@pytest.mark.parametrize(
    ("stream", "payload", "key", "value"),
    [
        # Nothing to add and nothing to look for: the very bytes.
        ({"from": ["+/+"]}, b' {"patient" :1}', b"", b' {"patient" :1}'),
        ({"from": ["+/+"], "subject": "patient"}, b'{"patient": "p"}', b"p", b'{"patient": "p"}'),
        ({"from": ["+/+"], "subject": "bed"}, b'{"bed": 12}', b"12", b'{"bed": 12}'),
        ({"from": ["+/+"], "subject": "bed"}, b'{"bed": true}', b"", b'{"bed": true}'),
        ({"from": ["+/+"], "subject": "patient"}, b"[]", b"", UNREAD + b"[]"),
        ({"from": ["+/+"]}, b'{"bed": 1, "bed": 2}', b"", UNREAD + b'{"bed": 1, "bed": 2}'),
        # What the topic says goes before what the payload says.
        ({"from": ["+ward/+bed"]}, b'{"bed": 1, "x": 2}', b"", b'{"bed":7,"x":2,"ward":"w"}'),
        ({"from": ["+ward/+"], "subject": "ward"}, b'{"ward":"v"}', b"w", b'{"ward":"w"}'),
        ({"from": ["+ward/+"], "subject": "ward"}, b"none", b"w", UNREAD + b"none"),
        ({"from": ["+bed/+"]}, b"{}", b"", b'{"bed":"w"}'),
        # What another pattern of the stream fills is no payload's to say.
        ({"from": ["+/+", "x/+ward"]}, b'{"ward":"v"}', b"", b'{"ward":null}'),
        (
            {"from": ["+/+bed", "x/+ward"], "subject": "ward"},
            b'{"ward":"v"}',
            b"",
            b'{"ward":null,"bed":7}',
        ),
        # A key that is too long for the log is none.
        (
            {"from": ["+/+"], "subject": "patient"},
            b'{"patient":"' + b"p" * 5000 + b'"}',
            b"",
            b'{"patient":"' + b"p" * 5000 + b'"}',
        ),
        (
            {"from": ["+/+"], "subject": "patient", "format": "connect"},
            b'{"schema":{},"payload":{"patient":"p"}}',
            b"p",
            b'{"schema":{},"payload":{"patient":"p"}}',
        ),
        ({"from": ["+/+"], "subject": "patient", "format": "avro"}, b"\x02p", b"", b"\x02p"),
    ],
)
def test_what_record_a_message_becomes(
    stream: dict[str, Any], payload: bytes, key: bytes, value: bytes
) -> None:
    made = make_stream("s", **stream)
    assert TopicMapping(made, 0, made.patterns[0]).record("w/7", payload) == (key, value)


NAMED = [
    {"name": "topic", "type": "string"},
    {"name": "who", "type": "string", "category": "identifier", "optional": True},
]
BOTH = {"topic": "topic", "publisher": "who"}


@pytest.mark.parametrize(
    ("adds", "payload", "publisher", "value"),
    [
        ({"topic": "topic"}, b'{"a":1}', "ann", b'{"a":1,"topic":"w/7"}'),
        (BOTH, b"{}", "ann", b'{"topic":"w/7","who":"ann"}'),
        # What the payload says of itself does not count, even where nobody published.
        (BOTH, b'{"topic":"x","who":"bob"}', "ann", b'{"topic":"w/7","who":"ann"}'),
        (BOTH, b'{"who":"bob"}', None, b'{"who":null,"topic":"w/7"}'),
        # What nothing can be added to is kept, and is no record.
        (BOTH, b"[1]", "ann", UNREAD + b"[1]"),
        (
            {"topic": "topic"},
            b'{"topic":"x","a":"' + b"b" * (MAX_VALUE - 20) + b'"} \n',
            "ann",
            UNREAD + b'{"topic":"x","a":"' + b"b" * (MAX_VALUE - 26),
        ),
    ],
)
def test_a_stream_gets_topic_and_publisher_where_it_asks_for_them(
    adds: dict[str, str], payload: bytes, publisher: str | None, value: bytes
) -> None:
    made = make_stream("s", "+/+", fields=NAMED, adds=adds)
    mapping = TopicMapping(made, 0, made.patterns[0])
    assert mapping.record("w/7", payload, publisher) == (b"", value)


def test_nobody_is_told_who_published_unasked() -> None:
    made = make_stream("s", "+/+", fields=NAMED, adds={"topic": "topic"})
    assert b"ann" not in TopicMapping(made, 0, made.patterns[0]).record("w/7", b"{}", "ann")[1]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.binary(max_size=50)
    | st.dictionaries(st.sampled_from(["ward", "bed", "patient", "x"]), values).map(
        lambda it: json.dumps(it).encode()
    )
)
def test_no_payload_is_lost_or_harmed(payload: bytes) -> None:
    stream = make_stream("s", "+ward/+bed", subject="patient")
    _, value = TopicMapping(stream, 0, stream.patterns[0]).record("w/7", payload)
    said = read_object(payload)
    if said is not None:
        assert repr(json.loads(value)) == repr({**said, "ward": "w", "bed": 7})
    else:
        assert value == UNREAD + payload


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"a":1e400}',
        b'{"a":' + b"9" * 10_000 + b"}",
        b'{"a":"\\ud800"}',
        '{"a":1}'.encode("utf-16"),
        json.dumps({"a": "ä" * 300_000}, ensure_ascii=False).encode(),
    ],
    ids=[
        "deep",
        "nested",
        "endless",
        "long number",
        "surrogate",
        "utf-16",
        "longer when written anew",
    ],
)
def test_odd_payloads_stop_nothing(payload: bytes) -> None:
    stream = make_stream("s", "+ward/+bed", subject="patient")
    key, value = TopicMapping(stream, 0, stream.patterns[0]).record("w/7", payload)
    assert key == b""
    assert len(value) <= MAX_VALUE
    assert value.startswith(UNREAD) or json.loads(value)["ward"] == "w"
