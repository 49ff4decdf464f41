"""Microaggregation against every possible division, and groups that are large enough."""

import math
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.masks.anonymity.microaggregation import (
    Microaggregate,
    TooFew,
    aggregate_tuples,
    aggregate_values,
)
from tests.support.scale import scaled

numbers = st.one_of(
    st.integers(-20, 20).map(float),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from([-1e9, 1e9, 0.1, 0.2, 0.3]),
)


def squared_error(values: tuple[float, ...]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def least_error(values: list[float], k: int) -> float:
    """Try every division of the ordered values into groups of k or more."""
    ordered = tuple(sorted(values))

    @cache
    def of_first(count: int) -> float:
        if count == 0:
            return 0.0
        return min(
            (
                of_first(begin) + squared_error(ordered[begin:count])
                for begin in range(count - k + 1)
                if begin == 0 or begin >= k
            ),
            default=math.inf,
        )

    return of_first(len(ordered))


@settings(deadline=None, max_examples=scaled(300))
@given(st.lists(numbers, max_size=24), st.integers(1, 6))
def test_no_division_has_less_error(values: list[float], k: int) -> None:
    outcome = aggregate_values(np.array(values, dtype=np.float64), k)
    if len(values) < k:
        assert outcome == TooFew(len(values), k)
        return
    assert isinstance(outcome, Microaggregate)
    groups = [
        tuple(value for value, group in zip(values, outcome.groups, strict=True) if group == number)
        for number in range(outcome.groups.max() + 1)
    ]
    assert all(k <= len(group) < 2 * k for group in groups)
    error = sum(map(squared_error, groups))
    least = least_error(values, k)
    assert error <= least * (1 + 1e-9) + 1e-18 * max(map(abs, values)) ** 2
    for value, group in zip(outcome.values, outcome.groups, strict=True):
        mean = math.fsum(groups[group]) / len(groups[group])
        assert math.isclose(value, mean, rel_tol=1e-12, abs_tol=1e-6)


@settings(deadline=None, max_examples=scaled(100))
@given(
    st.integers(0, 2**32),
    st.integers(0, 400),
    st.integers(1, 4),
    st.integers(1, 30),
    st.integers(0, 9),
)
def test_tuples_are_in_groups_of_k_or_more(
    seed: int, count: int, fields: int, k: int, digits: int
) -> None:
    tuples = np.random.default_rng(seed).normal(0, 3, size=(fields, count)).round(digits)
    outcome = aggregate_tuples(tuples, k)
    if count < k:
        assert outcome == TooFew(count, k)
        return
    assert isinstance(outcome, Microaggregate)
    sizes = np.bincount(outcome.groups)
    assert sizes.min() >= k
    assert sizes.max() < 2 * k
    for number in range(sizes.size):
        members = outcome.groups == number
        mean = tuples[:, members].mean(axis=1, keepdims=True)
        assert np.allclose(outcome.values[:, members], mean)
