"""What a content filter is found by, what is refused, and what nobody learns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.lang import BOOL, Scope, compile_expression
from penstock.model.kinds import Stream
from penstock.policy.access.requests import Message
from penstock.policy.content_filters import (
    NODE_LIMIT,
    OWNER_LIMIT,
    PATTERN_LIMIT,
    ContentError,
    ContentFilters,
    ContentLimitError,
)
from penstock.policy.content_index import Equality, Range, find_predicate
from penstock.policy.event_types import TEXT_SEEN, EventTypes

INFINITE = float("inf")
VITALS: dict[str, Any] = {
    "name": "vitals",
    "from": ["home/+patient/vitals", "clinic/vitals"],
    "fields": [
        {"name": "patient", "type": "string"},
        {"name": "pulse", "type": "int"},
        {"name": "temperature", "type": "float"},
        {"name": "day", "type": "date"},
        {"name": "at", "type": "timestamp"},
        {"name": "device", "type": "long"},
        {"name": "path", "type": "string"},
        {"name": "who", "type": "string", "optional": True, "category": "identifier"},
    ],
    "adds": {"publisher": "who", "topic": "path", "properties": {"device": "device-id"}},
}

NOTE = {"name": "text", "type": "string"}


@pytest.fixture
def filters() -> ContentFilters:
    types = EventTypes()
    types.put([Stream.model_validate(VITALS)])
    return ContentFilters(types)


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ('r.patient == "p"', Equality(("patient", str), ("p",))),
        ('"p" == r.patient && r.pulse > 3', Equality(("patient", str), ("p",))),
        ("r.pulse in [1, 2]", Equality(("pulse", float), (1, 2))),
        ("r.pulse == 1 || r.pulse == 2", Equality(("pulse", float), (1, 2))),
        ('r.pulse == 1 || r.patient == "p"', None),
        ("r.pulse > 120", Range(("pulse", float), 120, INFINITE)),
        ("120 < r.pulse && r.pulse <= 130.5", Range(("pulse", float), 120, 130.5)),
        ("r.pulse > 1 && r.temperature < 37 && r.pulse < 9", Range(("pulse", float), 1, 9)),
        ("r.pulse > 1 || r.temperature < 37", None),
        ("!(r.pulse == 1)", None),
        ("r.pulse + 1 == 2", None),
        ("r.pulse != 1", None),
    ],
)
def test_what_a_filter_is_found_by(
    filters: ContentFilters, text: str, predicate: Equality | Range | None
) -> None:
    scope = Scope((("r", filters.types.describe("home/+/vitals")),))
    assert find_predicate(compile_expression(text, scope, BOOL).tree) == predicate


def read(filters: ContentFilters, topic: str, payload: object, **properties: str) -> dict[str, Any]:
    rest = {"properties": properties}
    return filters.types.read(Message(topic, json.dumps(payload).encode(), user="dev", rest=rest))


def test_attributes_of_a_message(filters: ContentFilters) -> None:
    said = {"pulse": 60, "temperature": 0.1, "day": "2026-01-02", "at": "2026-01-02T03:04:05Z"}
    lies = {"patient": "p2", "path": "x", "device": 1, "who": "eve"}
    found = read(filters, "home/p1/vitals", said | lies, **{"device-id": "42"})
    assert found["patient"] == "p1"
    assert (found["device"], found["path"]) == (42, "home/p1/vitals")
    assert found["temperature"] == pytest.approx(0.1)
    assert found["temperature"] != 0.1  # 32 bits, as in views
    assert (found["day"].isoformat(), found["at"].hour) == ("2026-01-02T00:00:00+00:00", 3)
    # A level that this topic has not is nobody's to say; who published is not an attribute.
    assert "patient" not in read(filters, "clinic/vitals", said | lies)
    assert "who" not in found


@pytest.mark.parametrize("pulse", ["60", 60.5, True, None, 2**31, [60], {}])
def test_a_value_of_another_type_is_missing(filters: ContentFilters, pulse: object) -> None:
    assert "pulse" not in read(filters, "home/p1/vitals", {"pulse": pulse})


def test_errors_say_in_one_line_what_is_wrong(filters: ContentFilters) -> None:
    with pytest.raises(ContentError) as caught:
        filters.check("r.plse > 120\n", "home/+/vitals")
    told = str(caught.value)
    assert "plse" in told
    assert "pulse" in told  # the fix
    assert "\n" not in told
    for text in ("r.pulse", "r.pulse >", "", "r.who == 'x'", 's.uid == "ann"'):
        with pytest.raises(ContentError):
            filters.check(text, "home/+/vitals")


def test_who_may_read_nothing_learns_of_no_type(filters: ContentFilters) -> None:
    refused = []
    for text in ("r.pulse > 1", "r.plse > 1", "!"):
        with pytest.raises(ContentError) as caught:
            filters.check(text, "home/+/vitals", lambda _: False)
        refused.append(str(caught.value))
    assert len(set(refused)) == 1
    assert "pulse" not in refused[0]
    # As where there is no type at all.
    with pytest.raises(ContentError) as caught:
        filters.check("r.pulse > 1", "garden/#")
    assert str(caught.value) == refused[0]


def test_no_error_names_an_attribute_of_what_the_owner_may_not_read(
    filters: ContentFilters,
) -> None:
    hidden = {
        "name": "hidden",
        "from": ["home/secret/#"],
        "fields": [{"name": "pulse", "type": "string"}, {"name": "pulsehiv", "type": "string"}],
    }
    filters.types.put([Stream.model_validate(hidden)])

    def visible(there: str) -> bool:
        return there != "home/secret/#"

    for text in ("r.pulse > 1", "r.pulsehi > 1"):
        with pytest.raises(ContentError) as caught:
            filters.hold("eve", text, "home/#", visible)
        assert "hiv" not in str(caught.value)
    assert filters.hold("eve", "r.pulse > 1", "clinic/#", visible).text == "r.pulse > 1"


def test_bounds(filters: ContentFilters) -> None:
    with pytest.raises(ContentError, match="characters"):
        filters.check(f'r.patient == "{"p" * 2000}"', "home/+/vitals")
    many = " || ".join(f"r.pulse=={it}" for it in range(NODE_LIMIT // 3))
    with pytest.raises(ContentError, match="parts"):
        filters.check(many, "home/+/vitals")
    held = [filters.hold("eve", f"r.pulse == {it}", "home/+/vitals") for it in range(OWNER_LIMIT)]
    with pytest.raises(ContentLimitError):
        filters.hold("eve", "r.pulse == -1", "home/+/vitals")
    # Nobody else notices, and what she has can be used again.
    assert filters.hold("ann", "r.pulse == -1", "home/+/vitals").text == "r.pulse == -1"
    assert filters.hold("eve", "r.pulse == 7", "home/+/vitals").compiled is held[7].compiled


@pytest.mark.parametrize(
    "text",
    [
        'r.path.levels().all(x, r.path.levels().all(y, !r.patient.matches(r"(a|b)*c")))',
        "r.path.levels() . exists (x, x == r.patient)",
        "r.path.levels().minus(r.patient.levels()).size() > 0",
        "r.path.levels().subset(r.patient.levels())",
        'r.path.matches(r"[ab]*a[ab]{11}c") || r.path.matches(r"[ab]*a[ab]{12}c")',
    ],
)
def test_what_one_message_may_make_dear_is_no_filter(filters: ContentFilters, text: str) -> None:
    with pytest.raises(ContentError, match=r"content filter has (no|more than one) "):
        filters.hold("eve", text, "home/+/vitals")
    assert not len(filters)


def test_what_is_named_like_it_is_a_filter(filters: ContentFilters) -> None:
    for text in ('r.path.contains("exists(")', 'r.patient in ["all", "minus"]'):
        assert filters.hold("ann", text, "home/+/vitals").text == text


def test_a_long_text_is_missing(filters: ContentFilters) -> None:
    filters.types.put(
        [Stream.model_validate({"name": "notes", "from": ["notes"], "fields": [NOTE]})]
    )
    for size, seen in ((TEXT_SEEN, True), (TEXT_SEEN + 1, False)):
        found = filters.hold("ann", 'r.text.matches(r"a+$")', "notes")
        message = Message("notes", json.dumps({"text": "a" * size}).encode())
        assert filters.admits(found, message) is seen


def test_patterns_are_bounded_for_each_owner(filters: ContentFilters) -> None:
    held = [
        filters.hold("eve", f'r.patient.matches(r"[ab]*a[ab]{{9}}{it}")', "home/+/vitals")
        for it in range(PATTERN_LIMIT)
    ]
    with pytest.raises(ContentLimitError, match="pattern"):
        filters.hold("eve", 'r.patient.matches(r"one more")', "home/+/vitals")
    # What has none, what is held already, and what others have is not counted.
    filters.hold("eve", "r.pulse == 1", "home/+/vitals")
    filters.hold("eve", held[0].text, "home/+/vitals")
    filters.hold("ann", 'r.patient.matches(r"one more")', "home/+/vitals")


def test_streams_that_disagree_on_a_type_have_no_such_attribute(filters: ContentFilters) -> None:
    filters.types.put(
        [
            Stream.model_validate(
                {
                    "name": "other",
                    "from": ["home/+/+"],
                    "fields": [
                        {"name": "pulse", "type": "string"},
                        {"name": "temperature", "type": "double"},
                    ],
                }
            )
        ]
    )
    with pytest.raises(ContentError, match="pulse"):
        filters.check("r.pulse > 1", "home/+/vitals")
    filters.check("r.pulse > 1", "clinic/vitals")
    found = read(filters, "home/p1/vitals", {"pulse": 60, "temperature": 36.5})
    assert "pulse" not in found  # text for one, number for the other
    assert found["temperature"] == 36.5


def test_a_change_of_types_is_seen_at_once(filters: ContentFilters) -> None:
    message = Message("home/p1/vitals", b'{"pulse": 60}')
    content = filters.hold("ann", "r.pulse == 60", "home/+/vitals")
    assert filters.admits(content, message)
    fields = [{**it, "type": "string"} if it["name"] == "pulse" else it for it in VITALS["fields"]]
    changed = {**VITALS, "fields": fields}
    filters.types.put([Stream.model_validate(changed)])
    assert not filters.admits(content, message)
