from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.clock import Clock

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
