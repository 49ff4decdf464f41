"""Event types that clients define: what the right covers, and what stays of a type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidError, PenstockError, Problem
from penstock.model.document import Document
from penstock.policy.purposes.commands import CommandError, DefineType, parse_publish
from penstock.policy.purposes.rights import (
    OPEN_RIGHTS,
    TYPE_LIMIT,
    CommandRights,
    TypeGrant,
    check_extension,
    check_room,
    check_topics,
    explain_faults,
)

PULSE = {"name": "pulse", "type": "int"}
PERSON = {"name": "patient", "type": "string", "category": "identifier"}
NOTE = {"name": "note", "type": "string", "optional": True}
BODY: dict[str, Any] = {"from": ["ward/+patient/vitals"], "fields": [PERSON, PULSE]}
HELD = Document("stream", "ward-vitals", {**BODY, "subject": "patient"})


def parse(body: object, name: str = "ward-vitals") -> DefineType:
    found = parse_publish(f"!DEFINE/{name}", json.dumps(body).encode())
    assert isinstance(found, DefineType)
    return found


def test_a_type_is_read_with_the_topics_of_its_messages() -> None:
    found = parse(BODY)
    assert (found.stream, found.body) == ("ward-vitals", BODY)
    assert found.filters == ("ward/+/vitals",)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "not a JSON object"),
        ({}, "nothing says which messages"),
        ({**BODY, "from": []}, "nothing says which messages"),
        ({**BODY, "from": ["a/#/b"]}, "a/#/b"),
        ({**BODY, "adds": {"publisher": "who"}}, "'adds' is not for clients to say"),
        ({**BODY, "source": "kafka"}, "'source' is not for clients to say"),
        ({**BODY, "erasure": "none"}, "'erasure' is not for clients to say"),
        ({**BODY, "description": "x" * 70_000}, "at most 65536 bytes"),
    ],
)
def test_what_is_no_type_is_refused(body: object, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        parse(body)


@pytest.mark.parametrize(
    ("stream", "below", "allowed"),
    [
        ("ward-vitals", ["ward/#"], True),
        ("ward-*", ["ward/+/vitals"], True),
        ("*", ["#"], True),
        ("ward-*", ["garden/#", "ward/+/+"], True),
        ("ward-vitals*", ["ward/p1/vitals"], False),
        ("ward-vital", ["#"], False),
        ("Ward-*", ["#"], False),
    ],
)
def test_the_right_covers_the_name_and_all_topics(
    stream: str,
    below: list[str],
    allowed: bool,  # noqa: FBT001
) -> None:
    rights = CommandRights(define=(TypeGrant(stream, tuple(below)),))
    told = rights.may(parse(BODY))
    assert told.allowed is allowed
    assert told.rule == "define"
    assert len(told.considered) == 1
    more = parse({**BODY, "from": [*BODY["from"], "cellar/+patient"]})
    assert rights.may(more).allowed is (below == ["#"] and allowed)
    assert not CommandRights(administer=True, reserve=("#",)).may(parse(BODY)).allowed
    assert OPEN_RIGHTS.may(parse(BODY)).allowed


def test_one_grant_has_to_cover_both() -> None:
    rights = CommandRights(
        define=(TypeGrant("ward-vitals", ("garden/#",)), TypeGrant("tree", ("#",)))
    )
    assert not rights.may(parse(BODY)).allowed


SUBJECT = {"subject": "patient"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**BODY, **SUBJECT}, None),
        ({**BODY, **SUBJECT, "fields": [NOTE, PULSE, PERSON], "description": "x"}, None),
        ({**BODY, **SUBJECT, "from": [*BODY["from"], "ward/+patient/more"]}, None),
        # By the first pattern that fits a message is about somebody else: `vitals`, or nobody.
        ({**BODY, **SUBJECT, "from": ["ward/+/+patient", *BODY["from"]]}, "in its order"),
        ({**BODY, **SUBJECT, "from": ["ward/+/vitals", *BODY["from"]]}, "in its order"),
        # What some pattern fills no payload fills: the pulse of every message would be gone.
        ({**BODY, **SUBJECT, "from": [*BODY["from"], "ward/x/+pulse"]}, "fills the field 'pulse'"),
        (BODY, "what it says under `subject`"),
        ({**BODY, **SUBJECT, "conform": True}, "what it says under `conform`"),
        ({**BODY, **SUBJECT, "from": ["ward/+patient/more"]}, "under `from`"),
        ({**BODY, **SUBJECT, "fields": [PERSON]}, "the field 'pulse'"),
        ({**BODY, **SUBJECT, "fields": [PERSON, {**PULSE, "type": "long"}]}, "the field 'pulse'"),
        ({**BODY, **SUBJECT, "fields": [{"name": "patient", "type": "string"}, PULSE]}, "'patient"),
        (
            {**BODY, **SUBJECT, "fields": [PERSON, PULSE, {"name": "x", "type": "int"}]},
            "make it optional",
        ),
    ],
)
def test_a_type_that_is_there_is_extended_and_loses_nothing(
    body: dict[str, Any], says: str | None
) -> None:
    check_extension(None, body)
    if says is None:
        check_extension(HELD, body)
    else:
        with pytest.raises(PenstockError) as caught:
            check_extension(HELD, body)
        assert says in str(caught.value)


def test_what_the_officer_said_of_records_stays() -> None:
    fields = [*BODY["fields"], {"name": "topic", "type": "string"}]
    body = {**BODY, "fields": fields}
    with pytest.raises(PenstockError, match="under `adds`"):
        check_extension(Document("stream", "s", {**body, "adds": {"topic": "topic"}}), body)


def test_there_is_room_for_so_many() -> None:
    grants = [TypeGrant("ward-*", ("#",)), TypeGrant("one", ("#",))]
    full = [f"ward-{number}" for number in range(TYPE_LIMIT)]
    check_room(grants, "ward-new", full[1:])
    check_room(grants, "ward-7", full)
    check_room(grants, "one", full)
    with pytest.raises(PenstockError, match="1000 streams"):
        check_room(grants, "ward-new", full)


@pytest.mark.parametrize(
    ("name", "filters", "free"),
    [
        ("eve", ["ward/+/vitals"], False),
        ("eve", ["garden/x", "ward/p1/+"], False),
        ("eve", ["#"], False),
        ("eve", ["ward/+/scales"], True),
        ("ward-vitals", ["ward/+/vitals", "ward/+/more"], True),
        ("ward-vitals", ["ward/+/vitals", "garden/#"], False),
        # What fed it before goes on.
        ("both", ["ward/#", "ward/p1/vitals"], False),
        ("both", ["ward/#"], True),
    ],
)
def test_topics_that_feed_a_type_have_it_alone(
    name: str,
    filters: list[str],
    free: bool,  # noqa: FBT001
) -> None:
    stored: dict[str, Any] = {
        "ward-vitals": {"from": ["ward/+patient/vitals"]},
        "tree": {"from": ["garden/+tree"]},
        "files": {"source": {"files": {"folder": "x"}}},
    }
    if name == "both":
        stored["both"] = {"from": ["ward/#"]}
    if free:
        check_topics(name, filters, stored)
    else:
        with pytest.raises(PenstockError, match="of another type already") as caught:
            check_topics(name, filters, stored)
        assert "tree" not in str(caught.value)


def test_nothing_of_others_is_told() -> None:
    own = Problem("stream/ward-vitals.fields.0.type", "no type 'x'", "write int")
    other = Problem("view/salaries.keys", "no field 'pay'")
    third = Problem("stream/ward-vitals-salaries", "is wrong")
    told = explain_faults("ward-vitals", InvalidError("definitions", [other, own, third]))
    assert "no type 'x'" in str(told)
    assert "salaries" not in str(told)
    assert "salaries" not in str(explain_faults("ward-vitals", InvalidError("d", [other])))
