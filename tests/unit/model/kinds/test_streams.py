from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.kinds import Hierarchy, Stream

AT = {"name": "a", "type": "long"}


def _stream(*fields: dict[str, Any], **more: Any) -> Stream:
    return Stream.model_validate({"name": "patients", "fields": list(fields), **more})


def test_field_lists_of_avro_and_kafka_connect_mean_the_same() -> None:
    avro = _stream(
        {"name": "pid", "type": "int"},
        {"name": "zip", "type": ["null", "long"], "default": None},
        {"name": "hba1c", "type": "float"},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "seen", "type": "long", "logicalType": "timestamp-millis"},
    )
    connect = _stream(
        {"field": "pid", "type": "int32"},
        {"field": "zip", "type": "int64", "optional": True},
        {"field": "hba1c", "type": "float32"},
        {"field": "born", "type": "date"},
        {"field": "seen", "type": "timestamp"},
    )
    assert avro == connect
    assert [field.type for field in avro.fields] == ["int", "long", "float", "date", "timestamp"]
    assert [field.optional for field in avro.fields] == [False, True, False, False, False]


def test_what_is_stored_has_one_notation() -> None:
    document = _stream({"field": "pid", "type": "int32", "category": "identifier"}).document()
    assert document.body == {"fields": [{"name": "pid", "type": "int", "category": "identifier"}]}


@pytest.mark.parametrize(
    ("fields", "more", "message"),
    [
        ([{"name": "a", "type": "int"}, {"name": "A", "type": "int"}], {}, "have one name"),
        ([{"name": "a", "type": "int"}], {"subject": "b"}, "there is no field 'b'"),
        ([{"name": "a", "type": "int"}], {"time": "a"}, "name a timestamp"),
        (
            [{"name": "a", "type": "int"}],
            {"tolerance": {"behind": "7d"}},
            "name the field under time",
        ),
        ([AT], {"time": "a", "tolerance": {"ahead": -1}}, "greater than or equal to 0"),
        ([AT], {"time": "a", "tolerance": {"behind": "a week"}}, "is not a duration"),
        ([{"name": "a", "type": "money"}], {}, "string"),
        ([{"name": "a", "type": ["int", "string"]}], {}, "string"),
        ([{"name": "a`b", "type": "int"}], {}, "printable"),
        ([{"name": "a", "type": "int"}], {"name": "a b"}, "a topic cannot have ' '"),
        ([], {}, "at least 1"),
    ],
)
def test_streams_that_make_no_sense_are_refused(
    fields: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        _stream(*fields, **more)


def test_how_far_times_may_lie_from_the_arrival() -> None:
    day = 24 * 3600 * 1000
    assert (_stream(AT).ahead, _stream(AT, time="a").behind) == (day, None)
    live = {"time": "a", "from": ["home/pulse"]}
    assert _stream(AT, **live).behind == 7 * day
    declared = _stream(AT, **live, tolerance={"ahead": "5m", "behind": "30d"})
    assert (declared.ahead, declared.behind) == (300_000, 30 * day)
    partly = _stream(AT, **live, tolerance={"ahead": 0})
    assert (partly.ahead, partly.behind) == (0, 7 * day)


def test_a_hierarchy_is_the_same_as_table_and_as_tree() -> None:
    table = Hierarchy.model_validate(
        {
            "name": "places",
            "values": {"Berlin": ["Germany", "Europe"], "Paris": ["France", "Europe"]},
        }
    )
    tree = {
        "value": "Europe",
        "children": [
            {"value": "Germany", "children": [{"value": "Berlin"}]},
            {"value": "France", "children": [{"value": "Paris"}]},
        ],
    }
    nested = Hierarchy.model_validate({"name": "places", "tree": tree})
    assert table.nested()["value"] == "Europe"
    assert [child["value"] for child in table.nested()["children"]] == ["Germany", "France"]
    assert [child["value"] for child in nested.nested()["children"]] == ["Germany", "France"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": ["x"], "b": ["y"]}, "ends at 'y', others at 'x'"),
        ({"a": ["g", "x"], "b": ["h", "x"], "c": ["g", "h", "x"]}, "lies below"),
        ({"a": []}, "has 0 generalizations"),
        ({"a": ["x"], "x": ["x"]}, "twice"),
        ({"a": ["b", "x"], "b": ["x"]}, "a value and a group"),
    ],
)
def test_tables_that_make_no_tree_are_refused(values: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Hierarchy.model_validate({"name": "h", "values": values})


def test_a_hierarchy_has_one_notation() -> None:
    with pytest.raises(ValidationError, match="exactly one of both"):
        Hierarchy.model_validate({"name": "h"})


FIELDS = [{"name": "ward", "type": "string"}, {"name": "pulse", "type": "float"}]


def _fed(*patterns: str, **more: Any) -> Stream:
    body = {"name": "vitals", "fields": FIELDS, "from": list(patterns), **more}
    return Stream.model_validate(body)


def test_patterns_are_stored_under_the_name_that_people_write() -> None:
    document = _fed("home/+ward/pulse", "lab/#").document()
    assert document.body["from"] == ["home/+ward/pulse", "lab/#"]
    assert "from" not in _fed().document().body


@pytest.mark.parametrize(
    ("patterns", "more", "said"),
    [
        (["$SYS/#"], {}, "never recorded"),
        (["$share/g/home"], {}, "never recorded"),
        (["home/+bed"], {}, "the level 'bed' is not a field"),
        (["home/+pulse"], {}, "the level 'pulse' is not a field"),
        (["home/+ward/+ward"], {}, "two levels"),
        (["home/#/pulse"], {}, "continues after"),
        ([""], {}, "empty"),
        (["home/+ward"], {"format": "avro"}, "nothing can be added to values of avro"),
        (["home/+ward"], {"format": "connect"}, "nothing can be added to values of connect"),
        (
            ["home/+"],
            {"source": {"files": {"folder": "/data", "format": "csv"}}},
            "the records come from files",
        ),
        (["home/+"] * 101, {}, "at most 100"),
    ],
)
def test_what_cannot_feed_a_stream_is_refused(
    patterns: list[str], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        _fed(*patterns, **more)


ADDED = [
    *FIELDS,
    {"name": "channel", "type": "string"},
    {"name": "who", "type": "string", "category": "identifier", "optional": True},
    {"name": "open", "type": "string", "optional": True},
    {"name": "must", "type": "string", "category": "identifier"},
]


def test_topic_and_publisher_are_added_where_a_stream_asks() -> None:
    adds = {"topic": "channel", "publisher": "who"}
    made = _fed("home/+ward", fields=ADDED, adds=adds)
    assert made.document().body["adds"] == adds
    assert made.adds is not None
    assert made.adds.names() == list(adds.items())
    assert "adds" not in _fed("home/+ward").document().body


@pytest.mark.parametrize("adds", [{"topic": "channel"}, {"properties": {"who": "person"}}])
def test_what_is_made_of_a_stream_can_be_kept_by_the_stream(adds: dict[str, Any]) -> None:
    streams = [_fed("home/+ward", fields=ADDED, adds=adds) for _ in range(2)]
    assert len(set(streams)) == 1


@pytest.mark.parametrize(
    ("patterns", "more", "said"),
    [
        ([], {"adds": {"topic": "channel"}}, "no messages feed the stream"),
        (["a"], {"adds": {"topic": "channel"}, "format": "avro"}, "nothing can be added"),
        (["a"], {"adds": {"topic": "bed"}}, "'bed' is not a field of type string"),
        (["a"], {"adds": {"topic": "pulse"}}, "'pulse' is not a field of type string"),
        (["+ward"], {"adds": {"topic": "ward"}}, "'ward' is filled twice"),
        (["a"], {"adds": {"topic": "who", "publisher": "who"}}, "'who' is filled twice"),
        (["a"], {"adds": {"publisher": "open"}}, "'open' names a person"),
        (["a"], {"adds": {"publisher": "must"}}, "'must' names a person"),
    ],
)
def test_what_cannot_be_added_is_refused(
    patterns: list[str], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        _fed(*patterns, fields=ADDED, **more)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"source": None}, "topics at Kafka"),
        ({"source": {"files": {"folder": "/a", "format": "csv"}}, "from": []}, "topics at Kafka"),
        ({"subject": None}, "whose records"),
        ({"from": []}, "only what the gateway writes"),
        ({"format": "avro"}, "only what the gateway writes"),
    ],
)
def test_only_what_the_gateway_seals_can_be_shredded(changed: dict[str, Any], words: str) -> None:
    body = {
        "name": "s", "fields": [{"name": "pid", "type": "string"}], "subject": "pid",
        "source": "kafka", "from": ["home/+/vitals"], "erasure": "shred",
    }  # fmt: skip
    assert Stream.model_validate(body).erasure == "shred"
    with pytest.raises(ValidationError, match=words):
        Stream.model_validate(body | changed)
