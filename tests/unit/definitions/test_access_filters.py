"""Filters of scenarios and emergency policies: who is involved, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import list_grants, list_involved, make_authorizer
from penstock.definitions.events.program import compile_program
from penstock.errors import InvalidError
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import Message
from penstock.policy.decision import Explanation

SOURCE = """
{kind: enforcement, name: default, policies: required}
---
kind: vocabulary
name: v
subject: {uid: string, groups: "list(string)", pSet: "list(string)", rank: int}
object: {patientId: string}
---
{kind: object, name: o, topics: "ward/+patientId/#"}
---
{kind: event, name: Up, attributes: {pid: string}, packet: {filters: [up], set: {pid: o.patientId}}}
---
kind: plan
name: p
situations: [{id: Low, level: 1}, {id: High, level: 4}]
evolutions: [{event: Up, to: Low}, {event: Up, from: Low, to: High}]
---
kind: scenario
name: s
plan: p
attribute: pid
subject_filter: s.uid == c.subject || c.subject in s.pSet
---
{kind: attributes, name: "user:ann", values: {pSet: [bob], rank: 4}}
---
{kind: attributes, name: "user:eve", values: {pSet: [cid], rank: 1}}
---
{kind: group, name: staff, members: ["user:ann", "user:eve", "user:zoe"]}
---
kind: emergency-policy
name: reads
subject: group:staff
filter: ward/#
allow: read
plan: p
about: o.patientId
scenario_filter: c.scenario == "s"
situation_filter: c.level <= s.rank
---
kind: policy
name: ordinary
subject: user:eve
filter: ward/#
allow: read
"""


def build(*changes: tuple[str, str]) -> DefinitionSet:
    text = SOURCE
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    return DefinitionSet.build(read_text(text).documents)


def explain(definitions: DefinitionSet, user: str, *held: Any) -> Explanation:
    access = make_authorizer(definitions).access
    principal, message = access.principal(user, None), Message("ward/bob/pulse")
    board = SituationBoard(held or [("s", "bob", "Low")])
    told = access.explain("read", principal, message, {}, board)
    assert told.allowed is access.decide("read", principal, message, {}, board).allowed
    return told


def says(told: Explanation, rule: str) -> str:
    return next(it.effect for it in told.considered if it.rule == rule)


def test_who_is_involved_gets_what_the_filters_choose() -> None:
    told = explain(build(), "ann")
    assert told.allowed
    assert told.rule == "emergency-policy reads"
    assert says(told, "emergency-policy reads") == "applies in s=Low: grants read"


@pytest.mark.parametrize(
    ("user", "held", "said"),
    [
        # No list of patients: nothing says that zoe treats bob.
        ("zoe", "Low", "the scenario's subject filter cannot be decided: s.pSet is missing"),
        ("eve", "Low", "the scenario's subject filter is false"),
        ("bob", "Low", "is for group:staff"),
    ],
)
def test_who_is_not_is_told_why(user: str, held: str, said: str) -> None:
    told = explain(build(), user, ("s", "bob", held))
    assert said in says(told, "emergency-policy reads")
    assert told.allowed is (user == "eve")  # by the ordinary policy


def test_a_situation_filter_sees_who_asks() -> None:
    weaker = build(("rank: 4", "rank: 1"))
    assert explain(weaker, "ann").allowed
    told = explain(weaker, "ann", ("s", "bob", "High"))
    assert not told.allowed
    assert says(told, "emergency-policy reads") == "s=High: its situation filter is false"
    unknown = explain(build((", rank: 4", "")), "ann")
    reason = says(unknown, "emergency-policy reads")
    assert reason == "s=Low: its situation filter cannot be decided: s.rank is missing"


def test_ordinary_policies_go_on_for_whom_no_case_involves() -> None:
    exclusive = (
        "policies: required",
        "policies: required, exclusive: [{plan: p, about: o.patientId}]",
    )
    told = explain(build(exclusive), "eve")
    assert told.allowed
    involved = explain(
        build(exclusive, ("pSet: [cid]", "pSet: [bob]")), "eve", ("s", "bob", "High")
    )
    assert not involved.allowed
    assert involved.reason == "ordinary policies are set aside by exclusive plan of s"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("situation_filter: c.level", "minimum_level: 1\nsituation_filter: c.level"), "has both"),
        (("situation_filter: c.level", "situations: [Low]\nsituation_filter: c.level"), "has both"),
        (("scenario_filter: c", "scenarios: [s]\nscenario_filter: c"), "has both"),
        (("c.level <= s.rank", "c.level > 4"), "holds for nothing of the plan 'p'"),
        (("c.level <= s.rank", 'c.situation == "Lwo"'), r"there are Low \(level 1\), High"),
        (('c.scenario == "s"', 'c.scenario == "t"'), "holds for nothing of the plan"),
        (('c.scenario == "s"', 'c.situation == "Low"'), "c has no field 'situation'"),
        (('c.scenario == "s"', "o.patientId == c.subject"), "unknown name 'o'"),
        (("c.subject in s.pSet", "c.subject in s.pset"), "did you mean 'pSet'"),
        (("c.subject in s.pSet", "s.rank"), "bool"),
    ],
)
def test_filters_that_cannot_be_meant_are_refused(change: tuple[str, str], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        build(change)


def test_an_exclusive_plan_says_whose_situation_counts() -> None:
    for text in ("{plan: p}", "{plan: p, about: o.patientId, any_object: true}"):
        with pytest.raises(InvalidError, match="whose situation counts"):
            build(("policies: required", f"policies: required, exclusive: [{text}]"))


def test_people_are_told_whom_a_case_involves_and_what_it_opens_to_them() -> None:
    definitions = build()
    assert list_involved(definitions, "s", "bob") == ["ann"]
    (grant,) = list_grants(definitions, "s", "bob", "High")
    assert grant.people == ["ann"]
    assert list_grants(definitions, "s", "nobody", "High") == []
    everybody = build(
        ("subject_filter: s.uid == c.subject || c.subject in s.pSet", "description: x")
    )
    assert list_involved(everybody, "s", "bob") is None


def test_detection_is_another_only_where_somebody_is_involved_who_was_not() -> None:
    text = "subject_filter: s.uid == c.subject || c.subject in s.pSet"
    ranked = (text, "subject_filter: s.rank > 1")

    def scenarios(*changes: tuple[str, str]) -> Any:
        return compile_program(build(*changes).definitions).scenarios

    assert scenarios(ranked) == scenarios(ranked, ("pSet: [bob]", "pSet: [cid, bob]"))
    assert scenarios(ranked) == scenarios(ranked, ("rank: 4", "rank: 3"))
    assert scenarios(ranked) != scenarios(ranked, ("rank: 4", "rank: 1"))
    assert scenarios(ranked)["s"].concerns("ann")
    assert not scenarios(ranked)["s"].concerns("eve")
    assert not scenarios(ranked)["s"].concerns("somebody")
