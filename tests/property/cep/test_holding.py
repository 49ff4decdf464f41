"""Cases that somebody holds by hand: what may move them, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cep.context import EngineLimits
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import StepResult, TransitionCause, record_set, record_time
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program

SOURCE = """
{kind: vocabulary, name: v, object: {k: string}, payload: {v: int}}
---
{kind: event, name: Up, attributes: {k: string},
 packet: {filters: [up], set: {k: o.k}}}
---
{kind: event, name: Down, attributes: {k: string},
 packet: {filters: [down], set: {k: o.k}}}
---
{kind: event, name: Quiet, attributes: {k: string},
 pattern: {aggregate: [{event: Up}, {event: Down, as: down}], by: [k], window: {last: 5s},
           values: {n: count()}, where: it.n < 2, set: {k: it.k}}}
---
kind: plan
name: p
situations: [{id: Low, level: 1}, {id: High, level: 2}]
evolutions:
  - {event: Up, to: Low}
  - {event: Up, from: Low, to: High}
  - {event: Quiet, from: High, to: Low}
  - {event: Down, from: Low}
  - {event: Down, from: High}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""
PROGRAM = compile_program(DefinitionSet.build(read_text(SOURCE).documents).definitions)
NAMES = ("ann", "bob", "cid")

SNAPSHOT = 7

names = st.sampled_from(NAMES)
situations = st.sampled_from(["Low", "High"])
steps = st.tuples(
    st.integers(0, 4_000),
    st.one_of(
        st.tuples(st.sampled_from(["up", "down", "time"]), names, st.none(), st.just(0)),
        st.tuples(st.just("set"), names, situations, st.sampled_from([0, 1, 3_000, 10_000])),
        st.tuples(st.just("set"), names, st.none(), st.just(0)),
    ),
)


class House:
    """An engine that can be lost and made again from what was kept."""

    def __init__(self) -> None:
        self.engine = Engine(PROGRAM)
        self._saved = self.engine.save()
        self._log: list[bytes] = []

    def step(self, at: int, kind: str, who: str, situation: str | None, hold: int) -> StepResult:
        """Take a step, and put it on record."""
        if kind == "time":
            outcome, record = self.engine.advance(at), record_time(at)
        elif kind == "set":
            outcome = self.engine.set_situation("s", who, situation, at, hold)
            record = record_set("s", who, situation, at, hold)
        else:
            packet = Packet(kind, {"topic": kind, "payload": {}}, {}, {"k": who})
            prepared = self.engine.prepare(packet, at)
            outcome, record = prepared.commit(), prepared.record()
        self._log.append(record)
        if len(self._log) == SNAPSHOT:
            self._saved, self._log = self.engine.save(), []
        return outcome

    def restart(self) -> None:
        """Make the engine anew, and see that nothing is lost."""
        made = Engine.load(PROGRAM, self._saved)
        for record in self._log:
            made.replay(record)
        assert made.save() == self.engine.save()
        assert made.next_deadline() == self.engine.next_deadline()
        self.engine = made


@given(st.lists(steps, max_size=60))
def test_a_held_case_is_moved_by_nothing_but_hand_and_time(
    moves: list[tuple[int, tuple[str, str, str | None, int]]],
) -> None:
    house, at = House(), 0
    holds: dict[str, int] = {}  # who is held, and until when
    for passed, (kind, who, situation, hold) in moves:
        at += passed
        over = {(name, until) for name, until in holds.items() if until <= at}
        foretold = house.engine.next_deadline()
        assert all(foretold is not None and foretold <= until for until in holds.values())
        for it in house.step(at, kind, who, situation, hold).transitions:
            if it.cause is TransitionCause.TIME:
                assert it.target is None
                over.remove((it.subject, it.at))
                del holds[it.subject]
            elif it.cause is TransitionCause.HAND:
                holds.pop(it.subject, None)
                if hold:
                    holds[it.subject] = at + hold
            else:
                assert it.subject not in holds
        assert not over
        for name in NAMES:
            assert house.engine._instances.require("s").held.get(name) == holds.get(name)
            assert name not in holds or house.engine.current("s", name) is not None
        if passed % 5 == 0:
            house.restart()


def test_whom_somebody_holds_is_the_last_to_go_for_a_limit() -> None:
    engine = Engine(PROGRAM, EngineLimits(subjects=2))
    engine.set_situation("s", "ann", "Low", 1, 10_000)
    engine.set_situation("s", "bob", "Low", 2)
    _, dropped = engine.set_situation("s", "cid", "Low", 3, 10_000).transitions
    assert (dropped.subject, dropped.cause) == ("bob", TransitionCause.LIMIT)
    entered, dropped = (
        engine.prepare(Packet("up", {"topic": "up", "payload": {}}, {}, {"k": "dan"}), 4)
        .commit()
        .transitions
    )
    assert (entered.subject, dropped.subject) == ("dan", "dan")
    _, dropped = engine.set_situation("s", "eve", "Low", 5, 10_000).transitions
    assert (dropped.subject, dropped.cause) == ("ann", TransitionCause.LIMIT)
    assert [it.subject for it in engine.advance(20_000).transitions] == ["cid", "eve"]
