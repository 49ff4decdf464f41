from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.gateway.event_loop import Clock

DAY = 86_400.0
START = 1_000_000.0


class Hands:
    """Both clocks of a machine, moved by tests."""

    def __init__(self) -> None:
        self.wall = START
        self.steady = 5.0

    def make(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.steady)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def test_it_follows_the_wall_clock() -> None:
    hands = Hands()
    clock = hands.make()
    assert clock.now() == START * 1000
    hands.pass_by(1.5)
    assert clock.now() == START * 1000 + 1500


def test_a_jump_forward_is_followed_at_once() -> None:
    hands = Hands()
    clock = hands.make()
    hands.wall += 86_400
    assert clock.now() == (START + 86_400) * 1000


def test_after_a_jump_back_time_goes_on_slower_until_the_wall_clock_has_caught_up() -> None:
    hands = Hands()
    clock = hands.make()
    before = clock.now()
    hands.wall -= 100
    assert clock.now() == before
    for _ in range(800):
        hands.pass_by(1)
        clock.now()
    assert before + 740_000 < clock.now() < before + 760_000
    for _ in range(1_000):
        hands.pass_by(1)
        clock.now()
    assert clock.now() == hands.wall * 1000


def test_it_goes_on_from_a_time_that_was_told_before() -> None:
    hands = Hands()
    clock = hands.make()
    clock.go_on_from(int(START * 1000) + 7_000)
    assert clock.now() == START * 1000 + 7_000


def test_it_goes_on_as_fast_whether_it_is_asked_often_or_seldom() -> None:
    hands = Hands()
    clock = hands.make()
    before = clock.now()
    hands.wall -= 621
    clock.now()
    hands.pass_by(3_600)
    assert clock.now() == before + 3_600_000 * 15 // 16


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=50))
def test_it_never_goes_back_and_never_stops(moves: list[tuple[float, float]]) -> None:
    hands = Hands()
    clock = hands.make()
    held = clock.now()
    for passed, jump in moves:
        hands.pass_by(passed)
        hands.wall = max(0.0, hands.wall + jump)
        now = clock.now()
        assert now >= held
        assert now >= int(hands.wall * 1000)
        held = now
    hands.pass_by(3_600)
    assert clock.now() >= held + 3_300_000


def test_it_tells_how_far_it_is_ahead_of_the_wall_clock() -> None:
    hands = Hands()
    clock = hands.make()
    hands.wall += DAY
    clock.now()
    assert clock.ahead == 0
    hands.wall -= DAY
    now = clock.now()
    assert clock.ahead == now - int(hands.wall * 1000) == DAY * 1000
    hands.pass_by(16)
    clock.now()
    assert clock.ahead == DAY * 1000 - 1000
    clock.go_on_from(now + 500_000)
    clock.now()
    assert clock.ahead == DAY * 1000 + 500_000 - 16_000


OWN_TIME = """
{kind: vocabulary, name: v, payload: {k: string, at: int}}
---
{kind: event, name: On, attributes: {k: string},
 packet: {filters: [on], set: {k: t.payload.k}, time: t.payload.at, lateness: 1s}}
---
{kind: event, name: Off, attributes: {k: string},
 packet: {filters: [off], set: {k: t.payload.k}, time: t.payload.at, lateness: 1s}}
---
{kind: plan, name: p, situations: [{id: S, level: 1}],
 evolutions: [{event: On, to: S}, {event: Off, from: S}]}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""
PROGRAM = compile_program(DefinitionSet.build(read_text(OWN_TIME).documents).definitions)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_what_tells_the_true_time_at_once_is_never_late(moves: list[tuple[float, float]]) -> None:
    """However wrong the wall clock was meanwhile: an emergency can be ended."""
    hands = Hands()
    hands.wall = 1.8e9
    clock, engine = hands.make(), Engine(PROGRAM)
    log: list[bytes] = []

    def publish(topic: str) -> None:
        now = clock.now()
        message = {"topic": topic, "payload": {"k": "ann", "at": int(hands.wall * 1000)}}
        prepared = engine.prepare(Packet(topic, message, ahead=clock.ahead), now)
        log.append(prepared.record())
        ((_, row),) = prepared.commit().detected
        assert row.at == now

    for passed, jump in moves:
        publish("on")
        hands.pass_by(passed)
        hands.wall += jump
        engine.advance(clock.now())
        hands.wall -= jump
        publish("off")
        assert engine.current("s", "ann") is None
    assert engine.counts == {}
    repeated = Engine(PROGRAM)
    for record in log:
        repeated.replay(record)
    assert repeated.counts == {}
    assert repeated.current("s", "ann") is None
