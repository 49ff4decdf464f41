"""Statements 2 to 6 of the case study's appendix, against a model without any state.

Statement 1, that every packet is intercepted, is the gateway's: what it offers is what
counts here. Each statement is checked after every step: the events bound to a packet are
exactly those of its types (2, 3), every complex event that occurs is detected and no other
(4), the cases evolve in that order along one evolution each (5), and the situation that
policies are chosen by is the model's (6).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.cep.engine import Engine
from penstock.cep.outcome import Outcome
from tests.cep.nursing_home import START, Model, draw_message, load_program, make_packet

RUNS = 26
EVENTS = 2_000  # of each run: more than 50,000 in all
QUIET = {"UnderTest", "LastTest", "ReqAttSet", "Activation", "VisitedRoom", "Contact"}
QUIET |= {"CloseContact"}  # the model has no such events; it sees what follows from them

PROGRAM = load_program()


def check_step(model: Model, outcomes: list[Outcome], seen: int) -> None:
    detected = Counter(
        (name, row.values["pid"])
        for outcome in outcomes
        for name, row in outcome.detected
        if name not in QUIET
    )
    assert detected == Counter(model.raised[seen:])


def by_case(
    transitions: list[tuple[str, str, str | None, str | None, int]],
) -> list[tuple[str, str, str | None, str | None, int]]:
    """Order transitions by case: of one moment, those of different cases have no order."""
    return sorted(transitions, key=lambda it: (it[0], it[1]))


@pytest.mark.parametrize("seed", range(RUNS))
def test_the_engine_does_what_the_full_history_says(seed: int) -> None:
    draw = random.Random(seed)
    engine, model = Engine(PROGRAM), Model()
    at = START
    requests: list[int] = []
    for _ in range(EVENTS):
        at += draw.choice([0, 0, 1, 1000, 60_000, 1_200_000, 3_600_000, 14_400_000])
        seen = len(model.raised), len(model.transitions), len(model.published)
        outcomes = []
        waiting = [draw_message(draw, requests)]
        if draw.random() < 0.05:
            at += 86_400_000
            outcomes.append(engine.advance(at))
            model.advance(at)
        if draw.random() < 0.02:
            engine.offer(make_packet(*draw_message(draw, requests), at), at)  # denied: dropped
        if draw.random() < 0.02:
            engine = Engine.load(PROGRAM, engine.save())
        while waiting:
            word, payload = waiting.pop(0)
            outcome = engine.offer(make_packet(word, payload, at), at).commit()
            model.take(word, payload, at)
            outcomes.append(outcome)
            for publication in outcome.publications:
                if publication.topic == "warning":
                    requests = [*requests[-5:], publication.payload["time"]]
                else:
                    waiting.append((publication.topic, dict(publication.payload)))
        check_step(model, outcomes, seen[0])
        steps = [
            (it.scenario, it.subject, it.source, it.target, it.at)
            for outcome in outcomes
            for it in outcome.transitions
        ]
        assert by_case(steps) == by_case(model.transitions[seen[1] :])
        assert [
            (it.topic, it.payload["pid"]) for outcome in outcomes for it in outcome.publications
        ] == model.published[seen[2] :]
        for pid, patient in model.patients.items():
            for scenario, situation in patient.case.items():
                assert engine.current(scenario, pid) == situation
    assert {scenario for scenario, *_ in model.transitions} == {"covid", "pulmonary"}
