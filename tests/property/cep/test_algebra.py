"""Every operator of the algebra against its definition over the full history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.program import CompiledEvolution, CompiledPlan, CompiledScenario, Program
from penstock.cep.steps import StepResult
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from tests.support.scale import scaled

SOURCE = """
kind: vocabulary
name: test
object: {k: string}
payload: {v: int, at: int}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a], set: {k: o.k, v: t.payload.v}, time: t.payload.at, lateness: 5s}
---
kind: event
name: B
attributes: {k: string, v: int}
packet: {filters: [b], set: {k: o.k, v: t.payload.v}, time: t.payload.at, lateness: 5s}
---
kind: event
name: C
attributes: {k: string, v: int}
packet: {filters: [c], set: {k: o.k, v: t.payload.v}, time: t.payload.at, lateness: 5s}
"""
AGGREGATES = """
---
kind: event
name: %s
attributes: {k: string, n: int, total: int, mean: double, low: int, high: int, kinds: int,
             head: int, tail: int}
pattern:
  aggregate: [{event: A}]
  by: [k]
  window: %s
  values: {n: count(), total: sum(it.v), mean: avg(it.v), low: min(it.v), high: max(it.v),
           kinds: distinct(it.v), head: first(it.v), tail: last(it.v)}
"""
PATTERNS = """
---
kind: event
name: Few
description: Comes to hold as time passes.
attributes: {k: string}
pattern: {aggregate: [{event: A}, {event: B, as: b}], by: [k], window: {last: 10s},
          values: {n: count()}, where: it.n < 2, set: {k: it.k}}
---
kind: event
name: Many
attributes: {k: string}
pattern: {aggregate: [{event: A}], by: [k], window: {last: 10s}, values: {n: count()},
          where: it.n >= 2, set: {k: it.k}, raised: change}
---
kind: event
name: Or
attributes: {k: string, w: int}
pattern: {or: [{event: A, where: it.v > 1, set: {k: it.k, w: it.v}},
               {event: B, set: {k: it.k, w: it.v * 10}}]}
---
kind: event
name: Then
attributes: {k: string, a: int, b: int}
pattern: {sequence: [{event: A, as: a}, {event: B, as: b}], by: [k], within: 10s,
          where: a.v <= b.v, set: {k: a.k, a: a.v, b: b.v}}
---
kind: event
name: ThenNot
attributes: {k: string, a: int, c: int}
pattern: {sequence: [{event: A, as: a}, {not: {event: B}, as: b, where: b.v >= a.v},
                     {event: C, as: c}], by: [k], within: 10s, set: {k: a.k, a: a.v, c: c.v}}
---
kind: event
name: Unanswered
attributes: {k: string, a: int}
pattern: {sequence: [{event: A, as: a}, {not: {event: B}, as: b}], by: [k], within: 10s,
          set: {k: a.k, a: a.v}}
---
kind: event
name: OutOfTheBlue
attributes: {k: string, a: int}
pattern: {sequence: [{not: {event: B}, as: b}, {event: A, as: a}], by: [k], within: 10s,
          set: {k: a.k, a: a.v}}
---
kind: event
name: Both
attributes: {k: string, a: int, b: int}
pattern: {and: [{event: A, as: a, window: {last: 10s}}, {event: B, as: b, window: {last: 5s}}],
          by: [k], where: a.v != b.v, set: {k: a.k, a: a.v, b: b.v}}
---
kind: event
name: Alone
attributes: {k: string, a: int}
pattern: {and: [{event: A, as: a, window: {last: 10s}},
                {not: {event: B, window: {last: 5s}}, as: b, where: b.v == a.v}],
          by: [k], set: {k: a.k, a: a.v}}
---
kind: event
name: Thrice
attributes: {k: string, v: int}
pattern: {iterate: {event: A}, by: [k], times: 3, within: 10s}
---
kind: event
name: Greatest
attributes: {k: string, v: int}
pattern: {latest: {event: A}, by: [k], order: v}
"""
WINDOWS = {"Sliding": "{last: 10s}", "Tumbling": "{each: 10s}", "Counted": "{count: 3}"}
TEXT = SOURCE + PATTERNS
TEXT += "".join(AGGREGATES % (name, window) for name, window in WINDOWS.items())
PROGRAM = compile_program(DefinitionSet.build(read_text(TEXT).documents).definitions)

Raised = Counter[tuple[str, tuple[Any, ...]]]


@dataclass(frozen=True, order=True)
class Happened:
    """An event of the history, ordered by time, then by arrival."""

    at: int
    number: int
    kind: str
    k: str
    v: int


class Naive:
    """Keeps the full history, and reads every operator's definition off it."""

    def __init__(self) -> None:
        self.now = 0
        self.history: list[Happened] = []
        self.held: dict[str, set[Any]] = {}
        self.counted: dict[str, list[int]] = {}
        self.raised: Raised = Counter()

    def of(self, kind: str, k: str, since: int = -1) -> list[Happened]:
        return sorted(it for it in self.history if it.kind == kind and it.k == k and it.at > since)

    def advance(self, at: int) -> None:
        at = max(at, self.now)
        ends = {it.at + size for it in self.history for size in (5_000, 10_000)}
        for moment in sorted(end for end in ends if self.now < end <= at):
            self.now = moment
            for it in self.history:
                if it.kind == "A" and it.at + 10_000 == moment:
                    answers = [b for b in self.of("B", it.k) if it < b and b.at < it.at + 10_000]
                    if not answers:
                        self._raise("Unanswered", it.k, it.v)
            self._hold()
        self.now = at

    def take(self, kind: str, k: str, v: int, at: int, now: int) -> None:
        self.advance(now)
        at = min(at, self.now)
        if at < self.now - 5_000:
            return
        event = Happened(at, len(self.history), kind, k, v)
        self.history.append(event)
        self._raise(kind, k, v)
        if kind == "A":
            self._aggregate(k)
            if v > 1:
                self._raise("Or", k, v)
            if not [b for b in self.of("B", k, self.now - 10_000) if b < event]:
                self._raise("OutOfTheBlue", k, v)
            self._iterate(event)
        if kind == "B":
            self._raise("Or", k, v * 10)
        self._follow(event)
        held = self._hold()
        if kind in {"A", "B"} and k in self.held["Few"] and k not in held["Few"]:
            self._raise("Few", k)

    def _raise(self, name: str, *values: Any) -> None:
        self.raised[name, values] += 1

    def _aggregate(self, k: str) -> None:
        events = self.of("A", k)
        windows = {
            "Sliding": [it for it in events if it.at > self.now - 10_000],
            "Tumbling": [it for it in events if it.at // 10_000 == self.now // 10_000],
            "Counted": events[-3:],
        }
        newest = max(events, key=lambda it: it.number)
        for name, members in windows.items():
            if name != "Counted" and newest not in members:
                continue
            values = [it.v for it in members]
            total = sum(values)
            self._raise(
                name, k, len(values), total, total / len(values), min(values), max(values),
                len(set(values)), values[0], values[-1],
            )  # fmt: skip

    def _iterate(self, event: Happened) -> None:
        times = [at for at in self.counted.get(event.k, []) if at > self.now - 10_000]
        times.append(event.at)
        if len(times) == 3:
            self._raise("Thrice", event.k, event.v)
            times = []
        self.counted[event.k] = times

    def _follow(self, event: Happened) -> None:
        since = self.now - 10_000
        for a in self.of("A", event.k, since):
            for b in self.of("B", event.k, since):
                if event in {a, b} and a < b and b.at - a.at < 10_000 and a.v <= b.v:
                    self._raise("Then", a.k, a.v, b.v)
            for c in self.of("C", event.k, since):
                if event not in {a, c} or not a < c or c.at - a.at >= 10_000:
                    continue
                between = [b for b in self.of("B", event.k) if a < b < c and b.v >= a.v]
                if not between:
                    self._raise("ThenNot", a.k, a.v, c.v)

    def _hold(self) -> dict[str, set[Any]]:
        """Raise what begins to hold; return what held before."""
        before = self.held
        self.held = {name: set(found) for name, found in self._holding()}
        for name, found in self.held.items():
            for what in found - before.get(name, set()):
                if name in {"Few", "Many"}:
                    self._raise(name, what)
                elif name == "Both":
                    self._raise(name, what[0].k, what[0].v, what[1].v)
                else:
                    self._raise(name, what.k, what.v)
        return {name: found - before.get(name, set()) for name, found in self.held.items()}

    def _holding(self) -> Iterator[tuple[str, list[Any]]]:
        long, short = self.now - 10_000, self.now - 5_000
        keys = {it.k for it in self.history}
        yield "Few", [k for k in keys if len(self.of("A", k, long) + self.of("B", k, long)) == 1]
        yield "Many", [k for k in keys if len(self.of("A", k, long)) >= 2]
        yield (
            "Both",
            [
                (a, b)
                for k in keys
                for a in self.of("A", k, long)
                for b in self.of("B", k, short)
                if a.v != b.v
            ],
        )
        yield (
            "Alone",
            [
                a
                for k in keys
                for a in self.of("A", k, long)
                if all(b.v != a.v for b in self.of("B", k, short))
            ],
        )
        # The greatest value; of equals the one that came last.
        yield (
            "Greatest",
            [
                max(self.of("A", k), key=lambda it: (it.v, it.number))
                for k in keys
                if self.of("A", k)
            ],
        )


def collect(outcome: StepResult) -> Raised:
    return Counter((name, tuple(row.values.values())) for name, row in outcome.detected)


steps = st.lists(
    st.tuples(
        st.sampled_from("aaabbc"),
        st.sampled_from("xy"),
        st.integers(0, 3),
        st.sampled_from([0, 0, 1, 500, 2_000, 2_500, 5_000, 7_500, 10_000, -3_000]),
        st.sampled_from([0, 0, 0, -1, -1_000, -4_999, -5_000, -5_001, 700]),
        st.sampled_from(["take", "take", "take", "take", "drop", "reload", "wait"]),
    ),
    max_size=40,
)


@settings(max_examples=scaled(250), deadline=None)
@given(steps)
def test_operators_detect_what_their_definitions_say(
    given_steps: list[tuple[str, str, int, int, int, str]],
) -> None:
    engine, naive = Engine(PROGRAM), Naive()
    clock = 1_000_000
    for topic, k, v, passing, skew, what in given_steps:
        clock += passing
        at = max(clock, naive.now) + skew
        packet = Packet(topic, {"topic": topic, "payload": {"v": v, "at": at}}, {}, {"k": k})
        prepared = engine.prepare(packet, clock)
        naive.raised = Counter()
        found: Raised = Counter()
        if what == "reload":
            engine = Engine.load(PROGRAM, engine.save())
            prepared = engine.prepare(packet, clock)
        if what == "wait":
            found = collect(engine.advance(clock))
            naive.advance(clock)
        elif what != "drop":
            found = collect(prepared.commit())
            naive.take(topic.upper(), k, v, at, clock)
        assert found == naive.raised


def follow(begins: str, ends: str) -> Program:
    """Return the program with a scenario that one event begins and another ends."""
    plan = CompiledPlan(
        "p", {"on": 1}, (CompiledEvolution(begins, None, "on"), CompiledEvolution(ends, "on", None))
    )
    return replace(PROGRAM, plans={"p": plan}, scenarios={"s": CompiledScenario("s", "p", "k")})


events = st.sampled_from(sorted(PROGRAM.types))


@settings(max_examples=scaled(250), deadline=None)
@given(steps, events, events)
def test_time_alone_changes_no_situation_before_it_was_said_to(
    given_steps: list[tuple[str, str, int, int, int, str]], begins: str, ends: str
) -> None:
    program = follow(begins, ends)
    engine = Engine(program)
    clock = 1_000_000
    for topic, k, v, passing, skew, what in given_steps:
        clock = max(clock, clock + passing)
        if what == "reload":
            engine = Engine.load(program, engine.save())
        foretold, moves = engine.next_deadline(), engine.advance(clock).transitions
        assert all(foretold is not None and foretold <= it.at for it in moves)
        if what != "wait":
            payload = {"v": v, "at": clock + skew}
            packet = Packet(topic, {"topic": topic, "payload": payload}, {}, {"k": k})
            engine.prepare(packet, clock).commit()


def test_a_time_is_foretold_only_where_a_scenario_follows() -> None:
    packet = Packet("a", {"topic": "a", "payload": {"v": 1, "at": 1_000_000}}, {}, {"k": "x"})
    for program, moves in ((PROGRAM, False), (follow("A", "B"), False), (follow("A", "Few"), True)):
        engine = Engine(program)
        for _ in range(2):
            engine.prepare(packet, 1_000_000).commit()
        assert engine.next_timer() is not None
        assert (engine.next_deadline() is not None) is moves
