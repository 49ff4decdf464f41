"""The case study's policies, decision by decision, against its two tables."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import penstock_lab.demo
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import AccessDefinitions
from penstock.model import kinds
from penstock.policy.access.emergencies import NO_SITUATIONS, SituationBoard
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import ACTIONS
from penstock.policy.access.requests import Message

FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
PART_NAMES = ("events.yaml", "plans.yaml", "policies.yaml", "people.yaml")
SITUATIONS = ("Possible", "Suspected", "Asymptomatic", "Symptomatic", "Severe")
OWN, TREATED, KIN, WARD, ALL = "own", "treated", "kin", "ward", "all"
# Who, topic, about whom, action, in which situations of the patient (None: always).
TABLE_6 = [
    ("patient", "prescription", OWN, "read", None),
    ("patient", "result", OWN, "read", None),
    ("patient", "warning", OWN, "read", None),
    ("patient", "closecontact", OWN, "read", None),
    ("patient", "treatment", OWN, "read", None),
    ("patient", "consent", OWN, "write", None),
    ("patient", "bulletin", OWN, "read", None),  # the row that the table lacks
    ("medical", "physiological/temperature", TREATED, "read", None),
    ("medical", "prescription", TREATED, "write", None),
    ("medical", "result", TREATED, "read", None),
    ("medical", "warning", TREATED, "read", None),
    ("medical", "treatment", TREATED, "write", None),
    ("medical", "consent", TREATED, "read", None),
    ("medical", "bulletin", TREATED, "write", None),
    ("medical", "closecontact", TREATED, "read", None),
]
TABLE_7 = [
    ("medical", "location", TREATED, "read", SITUATIONS),
    ("specialist", "physiological/temperature", ALL, "read", ("Symptomatic", "Severe")),
    ("relative", "bulletin", KIN, "read", SITUATIONS),
    ("guardian", "treatment", WARD, "read", ("Severe",)),
    ("guardian", "consent", WARD, "write", ("Severe",)),
    ("guardian", "result", WARD, "read", ("Severe",)),
]
PATIENTS = ("patient-1", "patient-2", "patient-3")
# User → groups of the tables, and the patients that the user is concerned with, and how.
USERS: dict[str, tuple[set[str], dict[str, set[str]]]] = {
    **{it: ({"patient"}, {OWN: {it}}) for it in PATIENTS},
    "physician-1": ({"medical"}, {TREATED: {"patient-1", "patient-2"}}),
    "physician-2": ({"medical"}, {TREATED: {"patient-3"}}),
    "nurse-1": ({"medical"}, {TREATED: set(PATIENTS)}),
    "specialist-1": ({"specialist"}, {}),
    "relative-1": ({"relative", "guardian"}, {KIN: {"patient-1"}, WARD: {"patient-1"}}),
    "relative-2": ({"relative"}, {KIN: {"patient-2"}}),
    "stranger": (set(), {}),
}
TOPICS = sorted({row[1] for row in TABLE_6 + TABLE_7})


def build(extra: str = "") -> DefinitionSet:
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in PART_NAMES]
    documents = [it for text in texts for it in read_text(text).documents]
    changed = {it.key: it for it in (*documents, *read_text(extra).documents)}
    return DefinitionSet.build(changed.values())


def make_access(extra: str = "") -> AccessEngine:
    return AccessDefinitions(build(extra)).access


def expect(user: str, topic: str, patient: str, action: str, situation: str | None) -> set[str]:
    """Return the tables that grant it."""
    groups, concerned = USERS[user]
    return {
        name
        for name, table in (("6", TABLE_6), ("7", TABLE_7))
        for who, about, relation, allow, when in table
        if who in groups
        and (about, allow) == (topic, action)
        and (relation == ALL or patient in concerned.get(relation, ()))
        and (when is None or situation in when)
    }


def message_about(topic: str, patient: str, publisher: str | None = None) -> Message:
    return Message(topic, json.dumps({"pid": patient}).encode(), user=publisher)


def test_the_tables_are_complete() -> None:
    definitions = build()
    devices = {"sensor", "proximity-sensor", "laboratory"}
    ordinary = [it for it in definitions.of(kinds.Policy) if it.split("/")[0] not in devices]
    assert len(ordinary) == len(TABLE_6) == 15
    assert len(definitions.of(kinds.EmergencyPolicy)) == len(TABLE_7) == 6
    plan = definitions.get(kinds.Plan, "covid-19")
    assert plan is not None
    assert tuple(it.id for it in plan.situations) == SITUATIONS


def test_every_decision_is_the_one_of_the_tables() -> None:
    access = make_access()
    ways = product(USERS, TOPICS, PATIENTS, ACTIONS, (None, *SITUATIONS))
    for user, topic, patient, action, situation in ways:
        board = SituationBoard([("covid", patient, situation)] if situation else [])
        message = message_about(topic, patient)
        principal = access.principal(user, None)
        decision = access.decide(action, principal, message, {}, board)
        tables = expect(user, topic, patient, action, situation)
        assert decision.allowed is bool(tables), (user, topic, patient, action, situation)
        if tables == {"7"}:
            assert decision.applied == ("covid", patient, situation)
        told = access.explain(action, principal, message, {}, board)
        assert (told.allowed, told.rule) == (decision.allowed, decision.rule)


def test_one_severe_case_opens_no_other_patients_data() -> None:
    access = make_access()
    board = SituationBoard([("covid", "patient-1", "Severe")])
    principal = access.principal("specialist-1", None)
    temperature = "physiological/temperature"
    assert access.decide("read", principal, message_about(temperature, "patient-1"), {}, board)
    assert not access.decide("read", principal, message_about(temperature, "patient-2"), {}, board)
    assert not access.decide("read", principal, Message(temperature, b"{}"), {}, board)


def test_in_the_exclusive_mode_emergency_policies_replace_the_ordinary_ones() -> None:
    access = make_access(
        "kind: enforcement\nname: default\npolicies: required\n"
        "exclusive: [{plan: covid-19, about: o.patientId}]\n"
    )
    ways = product(USERS, TOPICS, PATIENTS, ACTIONS, (None, *SITUATIONS))
    for user, topic, patient, action, situation in ways:
        board = SituationBoard([("covid", patient, situation)] if situation else [])
        principal = access.principal(user, None)
        decision = access.decide(action, principal, message_about(topic, patient), {}, board)
        table = "7" if situation else "6"
        assert decision.allowed is (table in expect(user, topic, patient, action, situation))


def test_the_preference_of_a_patient_holds_in_an_emergency_unless_overridden() -> None:
    board = SituationBoard([("covid", "patient-1", "Severe")])
    message = message_about("physiological/respiratory", "patient-1", "sensor-1")
    access = make_access()
    assert access.decide("read", access.principal("physician-1", None), message, {}, board)
    specialist = access.principal("specialist-1", None)
    decision = access.decide("read", specialist, message, {}, board)
    assert (decision.allowed, decision.rule) == (False, "preference patient-1/respiratory-rate")
    access = make_access(
        "kind: enforcement\nname: default\npolicies: required\n"
        "preferences_in_emergencies: overridden\n"
    )
    decision = access.decide("read", specialist, message, {}, board)
    assert (decision.allowed, decision.overridden) == (True, True)
    assert not access.decide("read", specialist, message, {}, NO_SITUATIONS)


def test_devices_publish_their_own_data_only() -> None:
    access = make_access()
    sensor = access.principal("sensor-1", None)
    temperature = "physiological/temperature"
    assert access.decide(
        "write", sensor, message_about(temperature, "patient-1"), {}, NO_SITUATIONS
    )
    assert not access.decide(
        "write", sensor, message_about(temperature, "patient-2"), {}, NO_SITUATIONS
    )
    assert not access.decide(
        "write", sensor, message_about("result", "patient-1"), {}, NO_SITUATIONS
    )
    assert access.decide(
        "write", access.principal("room-1", None), message_about("location", "x"), {}, NO_SITUATIONS
    )
    laboratory = access.principal("laboratory", None)
    assert access.decide(
        "write", laboratory, message_about("result", "patient-1"), {}, NO_SITUATIONS
    )
