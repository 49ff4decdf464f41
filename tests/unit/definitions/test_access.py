"""Definitions that decide on access: what is refused, and what an engine makes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import AccessDefinitions
from penstock.definitions.authorizer import make_authorizer, suppose_situations
from penstock.errors import InvalidError, UsageError
from penstock.model.document import Key
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import make_request

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

HOME = """
kind: vocabulary
name: home
subject: {uid: string, groups: list(string), pSet: list(string), hired: timestamp}
object: {patientId: string, room: string, pulse: int}
---
kind: object
name: vitals
topics: home/+patientId/+room/#
payload: {pulse: values.pulse}
---
kind: group
name: nurses
members: [user:ann, user:eve]
---
kind: group
name: staff
includes: [nurses]
members: [user:bob]
---
kind: attributes
name: group:staff
values: {pSet: [p9], hired: "2026-01-01T00:00:00Z"}
---
kind: attributes
name: group:nurses
values: {pSet: [p1]}
---
kind: attributes
name: user:eve
values: {pSet: [p2]}
---
kind: attributes
name: client:sensor-1
on_behalf_of: p1
---
kind: event
name: Fall
attributes: {pid: string}
packet: {when: 't.topic.includes("fall")', set: {pid: o.patientId}}
---
kind: event
name: Rest
attributes: {pid: string}
packet: {when: 't.topic.includes("rest")', set: {pid: o.patientId}}
---
kind: plan
name: falls
situations: [{id: Fallen, level: 1}, {id: Hurt, level: 3}]
evolutions: [{event: Fall, to: Fallen}, {event: Rest, from: Fallen}]
---
kind: scenario
name: falls/house
plan: falls
attribute: pid
---
kind: policy
name: nurses-read
subject: group:staff
filter: home/#
allow: read
when: o.patientId in s.pSet
---
kind: emergency-policy
name: doctor-reads
subject: user:doc
filter: home/+/+/pulse
allow: read
plan: falls
minimum_level: 2
about: o.patientId
---
kind: preference
name: p1-staff-only
user: p1
filter: home/p1/#
when: '"staff" in s.groups'
---
kind: enforcement
name: default
policies: required
"""


def build(text: str = HOME) -> DefinitionSet:
    return DefinitionSet.build(read_text(text).documents)


def ask(text: str = HOME, **question: Any) -> tuple[bool, str]:
    definitions = build(text)
    authorizer = make_authorizer(definitions)
    rows = suppose_situations(definitions, question.pop("situations", {}))
    request = make_request(
        about=question.pop("object", {}),
        environment={"time": NOW},
        situations=SituationBoard(rows),
        **question,
    )
    decision = authorizer.explain(request)
    assert authorizer.authorize(request).allowed == decision.allowed
    return decision.allowed, str(decision)


@pytest.mark.parametrize(
    ("user", "patient", "allowed"),
    [
        ("ann", "p1", True),  # the nurses' set goes before the staff's
        ("ann", "p9", False),
        ("bob", "p9", True),
        ("eve", "p2", True),  # her own goes before the nurses'
        ("eve", "p1", False),
        ("out", "p1", False),
        (None, "p1", False),
    ],
)
def test_attributes_are_inherited_and_the_nearer_ones_win(
    user: str | None, patient: str, *, allowed: bool
) -> None:
    assert ask(topic=f"home/{patient}/7/pulse", user=user)[0] is allowed


def test_groups_that_disagree_leave_the_attribute_missing() -> None:
    text = HOME + "---\nkind: group\nname: night\nmembers: [user:ann]\n"
    text += "---\nkind: attributes\nname: group:night\nvalues: {pSet: [p1, p2]}\n"
    allowed, told = ask(text, topic="home/p1/7/pulse", user="ann")
    assert not allowed
    assert "the groups night and nurses disagree on s.pSet" in told
    assert ask(text, topic="home/p2/7/pulse", user="eve")[0]


def test_what_a_question_gives_goes_before_what_is_known() -> None:
    assert ask(topic="home/p5/7/pulse", user="ann", attributes={"pSet": ["p5"]})[0]
    assert not ask(topic="home/p1/7/pulse", user="ann", object={"patientId": "p3"})[0]


def test_an_emergency_policy_holds_for_the_subject_of_the_situation_only() -> None:
    situations = {"falls/house/p2": "Hurt"}
    allowed, told = ask(topic="home/p2/7/pulse", user="doc", situations=situations)
    assert allowed
    assert "in the situation falls/house=Hurt" in told
    for topic, supposed in [
        ("home/p3/7/pulse", situations),
        ("home/p2/7/weight", situations),
        ("home/p2/7/pulse", {"falls/house/p2": "Fallen"}),
        ("home/p2/7/pulse", {}),
    ]:
        assert not ask(topic=topic, user="doc", situations=supposed)[0]


@pytest.mark.parametrize(
    ("situations", "message"),
    [
        ({"fals/p1": "Hurt"}, "names no scenario"),
        ({"falls/house/": "Hurt"}, "names no scenario"),
        ({"falls/house/p1": "Dead"}, "has no situation"),
    ],
)
def test_supposed_situations_must_exist(situations: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(topic="home/p2/7/pulse", user="doc", situations=situations)


def test_preferences_hold_in_emergencies_unless_they_are_overridden() -> None:
    question: dict[str, Any] = {
        "topic": "home/p1/7/pulse",
        "user": "doc",
        "publisher": "p1",
        "situations": {"falls/house/p1": "Hurt"},
    }
    allowed, told = ask(**question)
    assert not allowed
    assert "denied by preference p1-staff-only" in told
    assert ask(**{**question, "publisher": "somebody"})[0]
    overridden = HOME.replace("policies: required", "policies: required\n" + OVERRIDE)
    allowed, told = ask(overridden, **question)
    assert allowed
    assert "sets preference p1-staff-only aside" in told
    assert not ask(overridden, **{**question, "situations": {}})[0]


OVERRIDE = "preferences_in_emergencies: overridden"


def test_preferences_hold_even_where_policies_are_off() -> None:
    text = HOME.replace("policies: required", 'policies: "off"')
    assert ask(text, topic="home/p1/7/pulse", user="ann", publisher="p1")[0]
    assert not ask(text, topic="home/p1/7/pulse", user="doc", publisher="p1")[0]
    assert ask(text, topic="home/p1/7/pulse", user="doc", publisher="p2")[0]


def test_an_exclusive_plan_sets_ordinary_policies_aside_for_its_subject() -> None:
    exclusive = "policies: required\nexclusive: [{plan: falls, about: o.patientId}]"
    text = HOME.replace("policies: required", exclusive)
    situations = {"falls/house/p1": "Fallen"}
    allowed, told = ask(text, topic="home/p1/7/pulse", user="ann", situations=situations)
    assert not allowed
    assert "set aside by exclusive plan of falls/house" in told
    assert ask(text, topic="home/p1/7/pulse", user="ann")[0]
    assert ask(text, topic="home/p2/7/pulse", user="eve", situations=situations)[0]
    assert ask(topic="home/p1/7/pulse", user="ann", situations=situations)[0]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("pSet: [p2]", "pSet: [7]", "is declared string"),
        ("pSet: [p2]", "pset: [p2]", "did you mean 'pSet'?"),
        ("pSet: [p2]", "uid: eve", "s.uid follows from who asks"),
        ('"2026-01-01T00:00:00Z"', "yesterday", "is declared timestamp"),
        ("uid: string", "uid: int", "follows from who asks, and is string"),
        ("+patientId", "+patient", "there is no attribute 'patient'"),
        ("+patientId", "+pulse", "is a level and in the payload"),
        ("pulse: values.pulse", "puls: values.pulse", "there is no attribute 'puls'"),
        ("+room", "+patientId", "two levels are called"),
        ("minimum_level: 2", "minimum_level: 4", "its levels end at 3"),
        ("minimum_level: 2", "situations: [Hurd]", "did you mean 'Hurt'?"),
        ("minimum_level: 2", "minimum_level: 2\nsituations: [Hurt]", "leave one of them out"),
        ("about: o.patientId\n", "", "must say whose situation counts"),
        ("about: o.patientId\n", "about: o.pulse\n", "string is asked for"),
        ("about: o.patientId\n", "any_object: true\nabout: o.room\n", "not both"),
        ("name: client:sensor-1", "name: anyone", "publishes for nobody"),
        ("name: client:sensor-1", "name: sensor-1", "write user:NAME"),
        ("name: group:nurses", "name: group:nurse", "there is no group 'nurse'"),
    ],
)
def test_wrong_definitions_are_refused_with_the_reason(old: str, new: str, complaint: str) -> None:
    assert old in HOME
    with pytest.raises(InvalidError) as caught:
        build(HOME.replace(old, new))
    assert complaint in str(caught.value)


def test_a_scenario_of_another_plan_is_refused() -> None:
    text = HOME.replace("minimum_level: 2", "minimum_level: 2\nscenarios: [other]")
    text += "---\nkind: plan\nname: fires\nsituations: [{id: Fire, level: 1}]\n"
    text += "evolutions: [{event: Fall, to: Fire}]\n"
    text += "---\nkind: scenario\nname: other\nplan: fires\nattribute: pid\n"
    with pytest.raises(InvalidError, match="follows the plan 'fires', not 'falls'"):
        build(text)


def test_personal_values_stay_out_of_complaints() -> None:
    with pytest.raises(InvalidError) as caught:
        build(HOME.replace("pSet: [p2]", "pSet: secret-patient"))
    assert "secret-patient" not in str(caught.value)


def test_changes_that_do_not_matter_leave_the_engine_alone() -> None:
    definitions = build()
    held = AccessDefinitions(definitions)
    before = held.access.generation
    assert not held.take(definitions, [Key("reservation", "a/#")])
    assert held.access.generation == before
    assert held.take(definitions, [Key("policy", "nurses-read")])
    assert held.access.generation > before
