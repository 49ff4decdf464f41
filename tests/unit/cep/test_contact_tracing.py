"""Sums of meetings that are kept, against those that are made of each meeting."""

from __future__ import annotations

import random

import pytest

from penstock.cep.contact_tracing import find_daily_sums
from penstock.cep.engine import Engine
from penstock.cep.program import Aggregate, Program
from penstock.cep.steps import StepResult
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from tests.support.nursing_home.program import FOLDER, START, make_packet

HOUR = 3_600_000
KEPT = "values: {duration: sum(it.duration)}\n  where: it.duration > 900.0"
TOLD = "attributes: {pid: string, rpid: string, date: int, ts: int, duration: double}"


def load(events: str) -> Program:
    documents = [
        document
        for name in ("policies.yaml", "people.yaml", "plans.yaml")
        for document in read_text((FOLDER / name).read_text(), name).documents
    ]
    documents += read_text(events, "events.yaml").documents
    return compile_program(DefinitionSet.build(documents).definitions)


def change(*changes: tuple[str, str]) -> str:
    events = (FOLDER / "events.yaml").read_text()
    for old, new in changes:
        assert events.count(old) == 1, old
        events = events.replace(old, new)
    return events


def sums_kept(program: Program) -> bool:
    operators = program.operators
    return any(find_daily_sums(it, operators) for it in range(len(operators)))


def test_kept_sums_are_those_of_the_meetings() -> None:
    counted = (TOLD, TOLD.replace("}", ", rooms: int}"))
    summed = (KEPT, KEPT.replace("}", ", rooms: count()}").replace("900.0", "20.0"))
    kept = Engine(load(change((KEPT, KEPT.replace("900.0", "20.0")))))
    made = Engine(load(change(counted, summed)))
    assert sums_kept(kept.program)
    assert not sums_kept(made.program)
    draw = random.Random(5)
    rooms = {f"p{number}": "hall" for number in range(8)}
    at, found = START, 0
    for _ in range(600):
        at += draw.choice([960, 1000, 1000, 1040] * 5 + [HOUR])
        messages: list[tuple[str, dict[str, object]]] = [
            ("location", {"pid": pid, "location": room}) for pid, room in rooms.items()
        ]
        rooms[draw.choice(list(rooms))] = draw.choice(["hall", "garden"])
        feverish = draw.choice(list(rooms))
        if draw.random() < 0.2:
            messages.append(("temperature", {"pid": feverish, "temperature": 39}))
        for message in messages:
            one, other = (
                engine.prepare(make_packet(*message, at), at).commit() for engine in (kept, made)
            )
            assert close_contacts(one) == close_contacts(other)
            assert set(map(repr, one.publications)) == set(map(repr, other.publications))
            found += len(close_contacts(one))
        for engine in (kept, made):
            # The case is closed again, so that the next fever asks again.
            if engine.current("covid", feverish) is not None:
                engine.set_situation("covid", feverish, None, at)
    assert found > 500


def close_contacts(outcome: StepResult) -> set[tuple[object, ...]]:
    return {
        tuple(row.values[it] for it in ("pid", "rpid", "date", "ts", "duration"))
        for name, row in outcome.detected
        if name == "CloseContact"
    }


def test_visits_are_raised_where_somebody_waits_for_them() -> None:
    documents = (FOLDER / "events.yaml").read_text()
    told = """
---
kind: action
name: TellRooms
event: VisitedRoom
topic: rooms
payload: {pid: it.pid, room: it.pos}
---
kind: plan
name: rooms
situations: [{id: Hot, level: 1}]
evolutions: [{event: Symptom, to: Hot, actions: [TellRooms]}]
---
kind: scenario
name: rooms
plan: rooms
attribute: pid
"""
    for text, topics in ((documents, {"warning"}), (documents + told, {"warning", "rooms"})):
        engine = Engine(load(text))
        at = START
        for room in ("hall", "garden"):
            engine.prepare(
                make_packet("location", {"pid": "ann", "location": room}, at), at
            ).commit()
            at += HOUR
        fever = make_packet("temperature", {"pid": "ann", "temperature": 39}, at)
        outcome = engine.prepare(fever, at).commit()
        assert {it.topic for it in outcome.publications} == topics
        raised = [row.values["pos"] for name, row in outcome.detected if name == "VisitedRoom"]
        assert raised == (["hall", "garden"] if "rooms" in topics else [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("every: 1s", "every: 100ms"),
        ("values: {duration: sum(it.duration)}", "values: {duration: max(it.duration)}"),
        ("by: [pid, rpid, date, ts]", "by: [pid, rpid, ts]"),
        (
            "  meetings: {event: VisitedRoom}",
            "  meetings: {event: VisitedRoom}\n  where: it.pos != ''",
        ),
    ],
)
def test_other_sums_are_made_of_the_meetings(old: str, new: str) -> None:
    changes = [(old, new)]
    if "date" in old:
        changes += [(TOLD, TOLD.replace("date: int, ", ""))]
    program = load(change(*changes))
    assert any(isinstance(it, Aggregate) and it.window.kind == "step" for it in program.operators)
    assert not sums_kept(program)


@pytest.mark.parametrize("phase", [0, 30, 500, 970])
def test_samples_need_not_come_on_the_second(phase: int) -> None:
    draw = random.Random(phase)
    engine = Engine(load((FOLDER / "events.yaml").read_text()))
    samples = [
        (START + second * 1000 + phase + draw.randint(-30, 30), pid)
        for second in range(1500)
        for pid in ("ann", "bob")
    ]
    for at, pid in sorted(samples):
        engine.prepare(make_packet("location", {"pid": pid, "location": "hall"}, at), at).commit()
    at = START + HOUR
    fever = make_packet("temperature", {"pid": "ann", "temperature": 39}, at)
    ((told, _, _, _, duration),) = close_contacts(engine.prepare(fever, at).commit())
    assert told == "bob"
    assert isinstance(duration, float)
    assert 1499 <= duration <= 1501
