"""What a message is about: found in topics and payloads, or missing."""

from __future__ import annotations

import pytest

from penstock.model.kinds import ObjectShape
from penstock.policy.access.requests import Message, make_layout

ROOM = ObjectShape(name="room", topics="home/+patientId/+room/#", payload={"pulse": "values.pulse"})


def test_levels_and_payload_fields_become_attributes() -> None:
    place = make_layout("home/p1/r7/pulse", [ROOM])
    message = Message("home/p1/r7/pulse", b'{"values": {"pulse": 80}}')
    assert message.about(place) == {"patientId": "p1", "room": "r7", "pulse": 80}
    assert message.t["payload"] == {"values": {"pulse": 80}}
    assert Message("home/p1/r7", b"").about(place)["pulse"] is None


def test_attributes_that_a_question_gives_go_before_those_that_are_found() -> None:
    place = make_layout("home/p1/r7", [ROOM])
    assert Message("home/p1/r7", {}, about={"room": "r8"}).about(place)["room"] == "r8"


@pytest.mark.parametrize(
    ("payload", "patient"),
    [
        (b'{"pid": "p1"}', "p1"),
        (b'{"pid": "p2"}', None),
        (b"{}", None),
        (b"no json", None),
    ],
)
def test_what_two_places_disagree_on_is_missing(payload: bytes, patient: str | None) -> None:
    inside = ObjectShape(name="inside", topics="home/#", payload={"patientId": "pid"})
    place = make_layout("home/p1/r7", [ROOM, inside])
    assert Message("home/p1/r7", payload).about(place)["patientId"] == patient


def test_levels_that_disagree_are_missing() -> None:
    other = ObjectShape(name="other", topics="home/+/+patientId")
    place = make_layout("home/p1/r7", [ROOM, other])
    assert Message("home/p1/r7").about(place)["patientId"] is None


def test_an_object_is_found_anew_where_definitions_changed() -> None:
    message = Message("home/p1/r7", b"{}")
    assert message.about(make_layout("home/p1/r7", [ROOM]))["room"] == "r7"
    assert message.about(make_layout("home/p1/r7", [])) == {}


def test_a_payload_that_could_be_read_in_two_ways_has_no_attributes() -> None:
    assert Message("t", b'{"pid": "p1"}').content == {"pid": "p1"}
    assert Message("t", b'{"pid": "p1", "pid": "p2"}').content is None
