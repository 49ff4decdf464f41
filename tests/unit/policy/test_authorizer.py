"""The composition by example: which part decides, by which rule, and what that depends on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.errors import UsageError
from penstock.model.purposes import PurposeSet
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import make_request
from penstock.policy.authorizer import Authorizer
from penstock.policy.decision import Depends, Part
from penstock.policy.parts import UNSTAMPED
from penstock.policy.purposes.settings import PurposeSettings

WARD = """
kind: vocabulary
name: ward
subject: {uid: string}
object: {patientId: string}
---
kind: object
name: beds
topics: ward/+patientId
---
kind: purpose
name: care
---
kind: reservation
name: ward/#
allow: [care]
---
kind: event
name: Fall
attributes: {pid: string}
packet: {when: 't.topic.includes("fall")', set: {pid: o.patientId}}
---
kind: plan
name: falls
situations: [{id: Fallen, level: 1}]
evolutions: [{event: Fall, to: Fallen}]
---
kind: scenario
name: falls
plan: falls
attribute: pid
---
kind: policy
name: nurses
subject: user:ann
filter: ward/#
allow: read
---
kind: emergency-policy
name: doctors
subject: user:doc
filter: ward/#
allow: read
plan: falls
minimum_level: 1
about: o.patientId
---
kind: preference
name: no-eve
user: bob
filter: ward/#
when: s.uid != "eve"
---
kind: policy
name: eve-too
subject: user:eve
filter: ward/#
allow: read
---
kind: enforcement
name: default
policies: required
"""
FALLEN = SituationBoard([("falls", "p1", "Fallen")])


@pytest.fixture(scope="module")
def authorizer() -> Authorizer:
    return make_authorizer(DefinitionSet.build(read_text(WARD).documents))


@pytest.mark.parametrize(
    ("question", "allowed", "part", "rule"),
    [
        ({"user": "ann"}, True, Part.POLICIES, "policy nurses"),
        ({"user": "out"}, False, Part.POLICIES, "enforcement default"),
        ({"user": "ann", "purpose": "car"}, False, Part.DECLARED_PURPOSES, "declared purposes"),
        ({"user": "ann", "purpose": None}, False, Part.RESERVATIONS, "reservation ward/#{care}"),
        (
            {"user": "ann", "message_purposes": PurposeSet.of(["care/night"])},
            False,
            Part.MESSAGE_PURPOSES,
            "purposes of the message {care/night}",
        ),
        ({"user": "eve", "publisher": "bob"}, False, Part.PREFERENCES, "preference no-eve"),
        ({"user": "eve", "publisher": "sue"}, True, Part.POLICIES, "policy eve-too"),
        ({"user": "doc"}, False, Part.POLICIES, "enforcement default"),
        (
            {"user": "doc", "situations": FALLEN},
            True,
            Part.EMERGENCIES,
            "emergency-policy doctors",
        ),
    ],
)
def test_the_first_part_that_denies_decides_else_the_last(
    authorizer: Authorizer, question: dict[str, Any], *, allowed: bool, part: Part, rule: str
) -> None:
    request = make_request("ward/p1", **{"purpose": "care", **question})
    decision, told = authorizer.authorize(request), authorizer.explain(request)
    assert (decision.allowed, decision.part) == (allowed, part)
    assert (told.allowed, told.part, told.rule) == (allowed, part, rule)
    assert decision.rule in {"", rule}
    by_purpose = not allowed and part not in {Part.PREFERENCES, Part.POLICIES}
    assert authorizer.name_purpose_denial(request) == (rule if by_purpose else "")


def test_an_explanation_lists_what_all_parts_considered(authorizer: Authorizer) -> None:
    request = make_request("ward/p1", purpose=None, user="ann")
    considered = {it.rule for it in authorizer.explain(request).considered}
    assert {"reservation ward/#{care}", "policy nurses", "emergency-policy doctors"} <= considered


def test_a_decision_says_what_it_depends_on(authorizer: Authorizer) -> None:
    by_purpose = authorizer.authorize(make_request("ward/p1", user="ann"))
    assert by_purpose.depends is Depends.NOTHING
    doctor = authorizer.authorize(make_request("ward/p1", user="doc", purpose="care"))
    assert doctor.depends & Depends.SITUATION
    assert doctor.depends & Depends.OBJECT
    nurse = authorizer.authorize(make_request("ward/p1", user="ann", purpose="care"))
    assert nurse.depends == Depends.PUBLISHER


def test_a_paused_subscription_lets_nothing_pass(authorizer: Authorizer) -> None:
    held = authorizer.purposes.subscribe("c", "ward/#", "care").subscription
    assert held is not None
    request = make_request("ward/p1", user="ann", purpose="care")._replace(subscription=held)
    assert authorizer.authorize(request).allowed
    held.active = False
    assert authorizer.authorize(request).part is Part.SUBSCRIPTION
    told = authorizer.explain(request)
    assert told.part is Part.SUBSCRIPTION
    assert "paused" in told.reason


def test_where_preferences_exist_a_message_of_an_unknown_publisher_is_nobodys(
    authorizer: Authorizer,
) -> None:
    request = make_request("ward/p1", user="ann", purpose="care")._replace(message=None)
    assert authorizer.authorize(request).rule == UNSTAMPED
    assert authorizer.explain(request).rule == UNSTAMPED


def test_what_a_definition_names_goes_before_what_is_configured_and_nothing_else() -> None:
    strict = PurposeSettings(allow_without_reservation=False)
    head = "kind: purpose-settings\nname: default\n"
    other = DefinitionSet.build(read_text(f"{head}filter_hybrid: true\n").documents)
    opening = read_text(f"{head}allow_without_reservation: true\n").documents
    free = make_request("free")
    assert not make_authorizer(DefinitionSet.empty(), strict).authorize(free).allowed
    assert not make_authorizer(other, strict).authorize(free).allowed
    assert make_authorizer(other).authorize(free).allowed
    assert make_authorizer(DefinitionSet.build(opening), strict).authorize(free).allowed
    assert make_authorizer(DefinitionSet.empty()).authorize(free).allowed


def test_writing_has_no_purpose_and_is_open_where_policies_are_not_required() -> None:
    request = make_request("free", action="write")
    decision = make_authorizer(DefinitionSet.empty()).authorize(request)
    assert decision.allowed
    assert decision.rule == "enforcement default"
    with pytest.raises(UsageError, match="writing has none"):
        make_request("free", action="write", purpose="care")
