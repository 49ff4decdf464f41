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
