from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.kinds import Stream

FIELDS = [{"name": "ward", "type": "string"}, {"name": "pulse", "type": "float"}]


def _stream(*patterns: str, **more: Any) -> Stream:
    body = {"name": "vitals", "fields": FIELDS, "from": list(patterns), **more}
    return Stream.model_validate(body)


def test_patterns_are_stored_under_the_name_that_people_write() -> None:
    document = _stream("home/+ward/pulse", "lab/#").document()
    assert document.body["from"] == ["home/+ward/pulse", "lab/#"]
    assert "from" not in _stream().document().body


@pytest.mark.parametrize(
    ("patterns", "more", "said"),
    [
        (["$SYS/#"], {}, "never recorded"),
        (["$share/g/home"], {}, "never recorded"),
        (["home/+bed"], {}, "the level 'bed' is no field"),
        (["home/+pulse"], {}, "the level 'pulse' is no field"),
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
        _stream(*patterns, **more)


ADDED = [
    *FIELDS,
    {"name": "channel", "type": "string"},
    {"name": "who", "type": "string", "category": "identifier", "optional": True},
    {"name": "open", "type": "string", "optional": True},
    {"name": "must", "type": "string", "category": "identifier"},
]


def test_topic_and_publisher_are_added_where_a_stream_asks() -> None:
    adds = {"topic": "channel", "publisher": "who"}
    made = _stream("home/+ward", fields=ADDED, adds=adds)
    assert made.document().body["adds"] == adds
    assert made.adds is not None
    assert made.adds.names() == adds
    assert "adds" not in _stream("home/+ward").document().body


@pytest.mark.parametrize(
    ("patterns", "more", "said"),
    [
        ([], {"adds": {"topic": "channel"}}, "no messages feed the stream"),
        (["a"], {"adds": {"topic": "channel"}, "format": "avro"}, "nothing can be added"),
        (["a"], {"adds": {"topic": "bed"}}, "'bed' is no field of type string"),
        (["a"], {"adds": {"topic": "pulse"}}, "'pulse' is no field of type string"),
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
        _stream(*patterns, fields=ADDED, **more)
