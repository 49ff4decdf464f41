from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.anonymizers.noisy_figures import LaplaceNoise, Ledger

DRAWS = 4000


def _charge(ledger: Ledger, persons: set[int], cost: int) -> set[int]:
    ordered = np.array(sorted(persons), dtype=np.int64)
    return set(ordered[ledger.charge(ordered, cost)].tolist())


@given(
    turns=st.lists(st.tuples(st.sets(st.integers(-3, 8)), st.integers(1, 5), st.integers(0, 40))),
    budget=st.integers(1, 12),
    renew=st.none() | st.integers(5, 30),
)
def test_nobody_spends_more_than_the_budget(
    turns: list[tuple[set[int], int, int]], budget: int, renew: int | None
) -> None:
    ledger = Ledger(budget, renew)
    spent: dict[int, int] = {}
    moment, period = 0, 0
    for persons, cost, later in turns:
        moment += later
        if renew is not None and moment // renew > period:
            period, spent = moment // renew, {}
        ledger.enter(moment)
        able = {person for person in persons if spent.get(person, 0) + cost <= budget}
        spent |= {person: spent.get(person, 0) + cost for person in able}
        assert _charge(ledger, persons, cost) == able
        ledger = Ledger.load(ledger.save(), budget, renew)
        assert ledger.spent() == spent
        assert all(amount <= budget for amount in spent.values())


def test_a_full_ledger_takes_nobody_new_until_it_renews() -> None:
    ledger = Ledger(10, 100, most=2)
    ledger.enter(0)
    assert _charge(ledger, {1, 2, 3}, 1) == {1, 2}
    assert _charge(ledger, {1, 2, 3}, 1) == {1, 2}
    assert ledger.size == 2
    ledger.enter(100)
    assert _charge(ledger, {3}, 1) == {3}


def test_a_period_that_is_declared_later_forgets_nothing_at_once() -> None:
    ledger = Ledger(2, None)
    ledger.enter(50)
    assert _charge(ledger, {1}, 2) == {1}
    changed = Ledger.load(ledger.save(), 2, 100)
    changed.enter(150)
    assert _charge(changed, {1}, 2) == set()
    changed.enter(200)
    assert _charge(changed, {1}, 2) == {1}


def test_noise_is_spread_as_declared() -> None:
    # Mean 0 and mean size 20, each within ten standard deviations of its estimate: by
    # Bernstein's bound a right mechanism fails this less than once in 10^9 runs.
    noise = LaplaceNoise(10, Fraction(1, 2))
    drawn = noise(np.full(DRAWS, 7, dtype=np.int64)) - 7
    deviation = 20 * 2**0.5
    assert abs(float(drawn.mean())) < 10 * deviation / DRAWS**0.5
    assert abs(float(np.abs(drawn).mean()) - 20) < 10 * 20 / DRAWS**0.5


def test_noise_is_drawn_anew() -> None:
    noise = LaplaceNoise(10**6, Fraction(1))
    zeros = np.zeros(20, dtype=np.int64)
    assert noise(zeros).tolist() != noise(zeros).tolist()  # equal once in 10^120 runs


def test_no_values_have_no_noise() -> None:
    assert LaplaceNoise(1, Fraction(1))(np.empty(0, dtype=np.int64)).size == 0


def test_the_ends_of_64_bits_hold() -> None:
    noise = LaplaceNoise(2**30, Fraction(1, 1000))
    ends = np.array([2**63 - 1, -(2**63)] * 20, dtype=np.int64)
    assert (np.sign(noise(ends)) == np.sign(ends)).all()
