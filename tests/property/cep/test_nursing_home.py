"""Statements 2 to 6 of the case study's appendix, against a model without any state.

Statement 1, that every packet is intercepted, is the gateway's: see
`gateway/test_nursing_home_interception.py`. Each other one is checked after every packet: the
events bound to a packet are exactly those of its types (2, 3), every complex event that occurs
is detected with all that it says, and no other (4), the cases evolve in that order along one
evolution each (5), and the situation that policies are chosen by is the model's (6). Whom cases
are of, filters say, which are drawn; which policies follow from that is checked on the wire, in
`gateway/test_nursing_home_selection.py`.

All types of tables 3 and 4 are compared. Two of them do not occur by themselves: stays
(VisitedRoom) and meetings (Contact) are looked up where somebody waits for them, and the case
study waits for their sums only (CloseContact), which it keeps. So every other run adds a
definition that waits for meetings.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from penstock.cep.engine import Engine
from penstock.cep.steps import StepResult
from tests.support.nursing_home.program import (
    COVID,
    DAY,
    HOUR,
    NOTIFIES,
    PATIENTS,
    PULMONARY,
    START,
    draw_message,
    draw_outbreak,
    load_program,
    make_packet,
)
from tests.support.nursing_home.reference_model import Model, make_event, tell
from tests.support.scale import scaled

RUNS = scaled(13)  # of each program
EVENTS = 2_000  # of each run: more than 50,000 in all, and some 400,000 samples of rooms
MEETING = """
kind: event
name: LastMeeting
attributes: {pid: string}
pattern: {latest: {event: Contact}, by: [pid], order: time, set: {pid: it.pid}}
"""
PROGRAMS = {False: load_program(), True: load_program(MEETING)}
# Whom a scenario is followed for: lines of its definition, and the patients they mean.
FILTERS = {
    "subjects: [patient-0, patient-4]": {"patient-0", "patient-4"},
    "group: patient": {"patient-1", "patient-2", "patient-3"},
    'subject_filter: s.uid in ["patient-0", "patient-4"]': {"patient-0", "patient-4"},
    "subject_filter: '\"patient\" in s.groups'": {"patient-1", "patient-2", "patient-3"},
    "subject_filter: c.subject in s.pSet": {"patient-0", "patient-1"},
    # Who has no list is not involved: what is missing involves nobody.
    "subject_filter: '!(\"patient-2\" in s.pSet)'": {"patient-1"},
    'subject_filter: s.pSet.minus(["patient-1"]).subset(["patient-0", "patient-2"])': {
        "patient-0",
        "patient-1",
    },
    'subject_filter: s.uid == c.subject && c.scenario == "covid"': set(PATIENTS),
}
PEOPLE = """
{kind: attributes, name: "user:patient-0", values: {pSet: [patient-0, patient-2]}}
---
{kind: attributes, name: "user:patient-1", values: {pSet: [patient-1]}}
"""
SCENARIO = """
---
kind: scenario
name: {name}
plan: {plan}
attribute: pid
{lines}
"""
FILTERED_RUNS = scaled(6)
FILTERED_EVENTS = 1_000


class Run:
    """An engine and the model, side by side."""

    def __init__(self, *, awaited: bool) -> None:
        self.program = PROGRAMS[awaited]
        self.engine = Engine(self.program)
        self.model = Model(awaited=awaited)
        self.requests: list[int] = []
        self.asked: dict[str, list[int]] = {}

    def advance(self, at: int) -> None:
        self.model.advance(at)
        self.check(self.engine.advance(at))

    def publish(self, word: str, payload: dict[str, Any], at: int) -> None:
        """Let both take a message, and what actions make of it."""
        waiting = [(word, payload)]
        while waiting:
            word, payload = waiting.pop(0)
            outcome = self.engine.prepare(make_packet(word, payload, at), at).commit()
            self.model.take(word, payload, at)
            self.check(outcome)
            if word == "prescription":
                self.note_request(payload["pid"], payload["reqId"])
            for publication in outcome.publications:
                if publication.topic == "warning":
                    self.note_request(publication.subject, publication.payload["time"])
                else:
                    waiting.append((publication.topic, dict(publication.payload)))

    def answer_all(self, at: int) -> None:
        """Let the tests of everybody be negative: most cases end, and new ones can begin."""
        said = {"testDate": tell(at).isoformat(), "result": False}
        for pid, requests in self.asked.items():
            for request in requests:
                self.publish("result", {"pid": pid, "reqId": request, **said}, at)

    def note_request(self, pid: str, request: int) -> None:
        self.asked[pid] = [*self.asked.get(pid, ())[-1:], request]
        self.requests = [*self.requests[-5:], request]

    def check(self, outcome: StepResult) -> None:
        model = self.model
        detected = [make_event(name, **row.values) for name, row in outcome.detected]
        detected = [it for it in detected if it[0] != "LastMeeting"]
        # As they are, mostly; what is raised at once has no order.
        assert detected == model.raised or Counter(detected) == Counter(model.raised)
        steps = [
            (it.scenario, it.subject, it.source, it.target, it.at) for it in outcome.transitions
        ]
        assert by_case(steps) == by_case(model.transitions)
        made = [(it.topic, it.payload["pid"]) for it in outcome.publications]
        assert sorted(made) == sorted(model.published)
        model.raised.clear()
        model.transitions.clear()
        model.published.clear()

    def check_situations(self) -> None:
        for pid, patient in self.model.patients.items():
            for scenario, situation in patient.case.items():
                assert self.engine.current(scenario, pid) == situation


def by_case(
    transitions: list[tuple[str, str, str | None, str | None, int]],
) -> list[tuple[str, str, str | None, str | None, int]]:
    """Order transitions by case: of one moment, those of different cases have no order."""
    return sorted(transitions, key=lambda it: (it[0], it[1]))


def play(draw: random.Random, run: Run, events: int = EVENTS) -> Model:
    """Draw a run, check it step by step, and return the model of all that has happened."""
    at = START
    for _ in range(events):
        at += draw.choice([0, 0, 1, 1000, 60_000, 1_200_000, HOUR, 4 * HOUR])
        if draw.random() < 0.02:
            at += DAY
            run.advance(at)
        if draw.random() < 0.005:
            run.answer_all(at)
            for word, payload, moment in draw_outbreak(draw, at):
                run.publish(word, payload, moment)
                at = moment
        if draw.random() < 0.02:
            denied = draw_message(draw, run.requests, run.asked, at)
            run.engine.prepare(make_packet(*denied, at), at)
        if draw.random() < 0.01:
            run.engine = Engine.load(run.program, run.engine.save())
        run.publish(*draw_message(draw, run.requests, run.asked, at), at)
        run.check_situations()
    return run.model


@pytest.mark.parametrize("awaited", [False, True])
def test_the_engine_does_what_the_full_history_says(awaited: bool) -> None:  # noqa: FBT001
    taken: Counter[tuple[str, str | None, str]] = Counter()
    told: Counter[tuple[str | None, str | None]] = Counter()
    for seed in range(RUNS):
        model = play(random.Random(2 * seed + awaited), Run(awaited=awaited))
        taken += model.taken
        told += model.told
    # What no run comes to, none has checked.
    assert set(taken) == {
        (scenario, *step)
        for scenario, table in (("covid", COVID), ("pulmonary", PULMONARY))
        for step in table
    }
    assert set(told) == NOTIFIES


def test_cases_are_those_of_whom_the_scenarios_involve() -> None:
    """With filters that are drawn, and lists and groups that stand for them."""
    draw = random.Random(99)
    for _ in range(FILTERED_RUNS):
        chosen = {name: draw.choice(sorted(FILTERS)) for name in ("covid", "pulmonary")}
        plans = {"covid": "covid-19", "pulmonary": "pulmonary-issues"}
        scenarios = [
            SCENARIO.format(name=name, plan=plans[name], lines=lines)
            for name, lines in chosen.items()
        ]
        run = Run(awaited=False)
        run.program = load_program(PEOPLE + "".join(scenarios))
        run.engine = Engine(run.program)
        run.model.involved = {name: FILTERS[lines] for name, lines in chosen.items()}
        if "c.scenario" in chosen["pulmonary"]:
            run.model.involved["pulmonary"] = set()
        taken = play(draw, run, FILTERED_EVENTS).taken
        followed = {scenario for scenario, *_ in taken}
        assert followed == {name for name, who in run.model.involved.items() if who}
