"""Parts of the persons, each followed by an engine of its own, find what one engine finds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.cep.engine import Engine
from penstock.cep.event_binding import INCOMPLETE, Packet
from penstock.cep.partition_engine import PartitionEngine, PartitionStep
from penstock.cep.spark import partition_program
from penstock.cep.steps import StepResult
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.lang.scalars import EPOCH

DEFINITIONS = """
{kind: vocabulary, name: v, payload: {k: string, v: int, other: string}}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a, both], set: {k: t.payload.k, v: t.payload.v}}
---
kind: event
name: B
attributes: {k: string, v: int}
packet: {filters: [b, both], set: {k: t.payload.other, v: t.payload.v}}
---
kind: event
name: Asked
attributes: {who: string, at: int}
request: {set: {who: r.subject, at: r.at}}
---
kind: event
name: Rest
description: Nobody asked, after somebody was asked for.
attributes: {k: string}
pattern: {sequence: [{event: Asked, as: a, set: {k: a.who}}, {not: {event: A}, as: b}],
          by: [k], within: 8s, set: {k: a.k}}
---
kind: event
name: Then
attributes: {k: string}
pattern: {sequence: [{event: A, as: a}, {event: B, as: b}], by: [k], within: 10s,
          where: a.v <= b.v, set: {k: a.k}}
---
kind: event
name: High
attributes: {k: string, m: int}
pattern: {aggregate: [{event: A, as: a}, {event: B, as: b}], by: [k], window: {last: 10s},
          values: {m: max(a.v), n: count()}, where: it.m >= 3 && it.n > 1,
          set: {k: it.k, m: it.m}}
---
kind: event
name: Calm
attributes: {k: string}
pattern: {and: [{latest: {event: B}, by: [k], order: v, as: b}, {not: {event: High}, as: h}],
          by: [k], set: {k: b.k}}
---
{kind: action, name: tell, event: Asked, topic: told, payload: {who: it.who}}
---
kind: plan
name: p
situations: [{id: One, level: 1}, {id: Two, level: 2}]
evolutions:
  - {event: Then, to: One, actions: [tell]}
  - {event: High, from: One, to: Two, actions: [tell]}
  - {event: Calm, from: Two, to: One}
  - {event: Rest, from: One}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""
PROGRAM = compile_program(DefinitionSet.build(read_text(DEFINITIONS).documents).definitions)
PERSONS = st.sampled_from(["p", "q", "r", "s"])
MESSAGES = st.lists(
    st.tuples(
        st.integers(-2000, 6000),
        st.sampled_from(["a", "b", "both", "c"]),
        PERSONS,
        PERSONS,
        st.integers(0, 4),
    ),
    max_size=60,
)
END = 100_000


class Found:
    """What came about for each person, in order."""

    def __init__(self) -> None:
        self.transitions: dict[str, list[Any]] = {}
        self.events: dict[str, list[Any]] = {}

    def note(self, outcome: StepResult) -> None:
        for it in outcome.transitions:
            step = it.at, it.source, it.target, it.event
            self.transitions.setdefault(it.subject, []).append(step)
        for name, row in outcome.detected:
            person = row.values.get("k", row.values.get("who"))
            self.events.setdefault(str(person), []).append((name, row.at, row.values))


def test_the_definitions_are_parted_by_the_person() -> None:
    separation = partition_program(PROGRAM)
    assert separation.key == "k"
    assert separation.joint is None
    assert separation.keyed.types.keys() == PROGRAM.types.keys()


@given(MESSAGES, st.integers(1, 4))
def test_parts_find_what_one_engine_finds(
    messages: list[tuple[int, str, str, str, int]], count: int
) -> None:
    separation = partition_program(PROGRAM)
    whole = Engine(PROGRAM)
    parts = [PartitionEngine(separation.keyed) for _ in range(count)]
    expected, found = Found(), Found()
    at = clock = 0
    for offset, (pause, topic, person, other, value) in enumerate(messages):
        at += pause
        clock = max(clock, at)
        payload = {"k": person, "other": other, "v": value}
        e = {"time": EPOCH + timedelta(milliseconds=at)}
        packet = Packet(topic, {"topic": topic, "payload": payload}, {}, {}, e)
        expected.note(whole.prepare(packet, at).commit())
        for number, engine in enumerate(parts):
            bound = [
                it
                for it in engine.prepare(packet, at).bound
                if it[3] != INCOMPLETE and ord(it[1]["k"]) % count == number
            ]
            # A part that sees nothing of a record learns of the time later.
            if bound:
                for _, outcome in engine.step(PartitionStep(offset, clock, bound)):
                    found.note(outcome)
    expected.note(whole.advance(max(END, clock)))
    for engine in parts:
        saved = PartitionEngine.load(separation.keyed, engine.save())
        assert isinstance(saved, PartitionEngine)
        for _, outcome in saved.step(PartitionStep(None, max(END, clock), [])):
            found.note(outcome)
    assert found.transitions == expected.transitions
    assert found.events == expected.events
