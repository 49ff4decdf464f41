"""Nobody can pass off a message as an event of a type that is not theirs to report.

Every user of the nursing home publishes every word that an event type looks for, on every
topic that some filter of a policy leaves room for, as loud as a message can be. What changes
is exactly what `INTENDED` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

import pytest

from penstock.cep.context import decode_snapshot
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.model import kinds
from penstock.model.document import Document
from penstock.policy.access.requests import Message
from penstock_lab.demo.nursing_home.definitions import read_forecasts, read_people, read_rules
from penstock_lab.simulation.in_process import InProcess

START: Final = 1_800_000_000_000
SIGNS: Final = ("Temperature", "RespiratoryRate", "EstimatedSpO2")
OWN: Final = {
    "result": "Result",
    "prescription": "Prescription",
    "location": "Location",
    "physiological/temperature": "Temperature",
    "physiological/respiratory": "RespiratoryRate",
    "physiological/saturation": "EstimatedSpO2",
    "closecontact": "ContactNotice",
}
"""The topic of each type; nothing else is an event."""
INTENDED: Final = {
    *((f"sensor-{number}", kind) for number in (1, 2, 3) for kind in SIGNS),
    *((f"room-{number}", "Location") for number in (1, 2)),
    ("laboratory", "Result"),
    *((name, "Prescription") for name in ("physician-1", "physician-2", "nurse-1")),
}
"""Who brings about events of which types."""
PATIENTS: Final = ("patient-1", "patient-2", "patient-3")


def read_all() -> list[Document]:
    return [*read_rules(), *read_people(), *read_forecasts()]


def without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: it for key, it in given.items() if key != name}


def find_users(documents: Iterable[Document]) -> set[str]:
    """Return all users that the definitions name, and one that they do not."""
    members = [it for group in documents for it in group.body.get("members", ())]
    subjects = [it.body["subject"] for it in documents if "subject" in it.body]
    named = (it for it in [*members, *subjects] if isinstance(it, str))
    return {it.removeprefix("user:") for it in named if it.startswith("user:")} | {"stranger"}


def find_words(documents: Iterable[Document]) -> set[str]:
    """Return the words of all binding criteria."""
    criteria = [it.body["packet"]["when"] for it in documents if "packet" in it.body]
    return {criterion.split('"')[1] for criterion in criteria}


def find_filters(carrier: InProcess) -> set[str]:
    """Return the filters of all policies, to read or to write."""
    policies = carrier.definitions.of(kinds.Policy).values()
    emergency = carrier.definitions.of(kinds.EmergencyPolicy).values()
    return {str(it.filter) for it in (*policies, *emergency)}


def find_topics(filters: Iterable[str], words: Iterable[str]) -> set[str]:
    """Return topics with each word, at each place that a filter leaves room for.

    The filters that policies once had are among them: `forecast/#` and `physiological/#`.
    """
    found = set()
    for filter_ in {*filters, "forecast/#", "physiological/#", "#", "+"}:
        room = filter_.removesuffix("#").rstrip("/")
        levels = [room] if room else []
        for word in words:
            for tail in ([word], [f"my-{word}-s"], [word, "x"], ["x", word]):
                found.add("/".join([*levels, *tail]).replace("+", word))
            found.add(room.replace("+", word) or word)
    return found


def say_everything(patient: str) -> dict[str, Any]:
    """Return a message with all that any type looks for, and that would change the most."""
    return {
        "pid": patient,
        "temperature": 41.0,
        "respiratory": 60.0,
        "saturation": 50.0,
        "location": "room-1",
        "result": True,
        "testDate": "2027-02-01T08:00:00Z",
        "reqId": 1,
    }


def find_bound(carrier: InProcess, topic: str, payload: dict[str, Any]) -> set[str]:
    """Return the types that a message would be an event of, whoever publishes it."""
    message = Message(topic, payload)
    e = {"time": START}
    packet = Packet(topic, message.t, {}, carrier.access.about(message), e)
    return {kind.name for kind, *_ in carrier.engine.prepare(packet, START).bound}


def look(carrier: InProcess) -> tuple[dict[str, Any], list[Any]]:
    """Return all that detection knows, but for how many messages it has seen."""
    board = carrier.board
    decided_by = [board.current(*it) for it in product(("covid", "pulmonary"), PATIENTS)]
    return without(decode_snapshot(carrier.engine.save()), "seq"), decided_by


def find_changes(documents: list[Document], situation: str | None) -> set[tuple[str, str]]:
    """Return who has changed something by which topic, with all patients in a situation."""
    carrier = InProcess(documents)
    carrier.advance(START)
    for patient in PATIENTS if situation else ():
        carrier.engine.set_situation("covid", patient, situation, START)
    saved = carrier.engine.save()

    def begin() -> None:
        carrier.engine = Engine.load(carrier.engine.program, saved)
        carrier.board.fill((name, who, it) for name, who, it, _ in carrier.engine.situations())

    begin()
    before = look(carrier)
    changed = set()
    topics = sorted(find_topics(find_filters(carrier), find_words(documents)))
    for user in sorted(find_users(documents)):
        for topic, patient in product(topics, PATIENTS):
            if carrier.publish(START, user, topic, say_everything(patient)):
                if look(carrier) != before:
                    changed.add((user, topic))
                begin()
        assert look(carrier) == before  # whatever was denied
    return changed


@pytest.mark.parametrize("situation", [None, "Suspected", "Severe"])
def test_only_who_is_meant_to_brings_about_an_event(situation: str | None) -> None:
    changed = find_changes(read_all(), situation)
    assert {(user, OWN.get(topic, topic)) for user, topic in changed} == INTENDED


def test_policies_alone_keep_events_from_being_forged() -> None:
    documents = [
        Document(it.kind, it.name, {**it.body, "packet": without(it.body["packet"], "filters")})
        if "packet" in it.body
        else it
        for it in read_all()
    ]
    changed = find_changes(documents, "Severe")
    assert {(user, OWN.get(topic, topic)) for user, topic in changed} == INTENDED


def test_types_alone_keep_events_from_being_forged() -> None:
    documents = read_all()
    carrier = InProcess(documents)
    words = find_words(documents)
    assert len(words) == len(OWN)
    for topic in find_topics(find_filters(carrier), words):
        bound = find_bound(carrier, topic, say_everything("patient-1"))
        assert bound == ({OWN[topic]} if topic in OWN else set()), topic


def test_who_publishes_by_itself_may_write_to_single_topics_only() -> None:
    policies = InProcess(read_all()).definitions.of(kinds.Policy).values()
    written = {str(it.filter) for it in policies if it.allow == "write"}
    assert len(written) > len(SIGNS)
    assert not [it for it in written if "#" in it or "+" in it]
