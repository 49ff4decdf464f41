import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.masks.anonymity import Microaggregate, TooFew, aggregate_tuples, aggregate_values
from penstock.masks.anonymity.microaggregation import LARGEST_BLOCK


def means(values: list[float], k: int) -> list[float]:
    outcome = aggregate_values(np.array(values, dtype=np.float64), k)
    assert isinstance(outcome, Microaggregate)
    return [float(value) for value in outcome.values]


def test_neighbours_share_their_mean() -> None:
    assert means([1, 100, 2, 102, 3], 2) == [2, 101, 2, 101, 2]


def test_an_outlier_does_not_blur_the_others() -> None:
    # Running sums of squares would lose .1, .2 and .3 beside -1e9.
    assert means([-1e9, -1e9, 0.1, 0.1, 0.3, 0.3], 2) == pytest.approx(
        [-1e9, -1e9, 0.1, 0.1, 0.3, 0.3]
    )


def test_the_largest_numbers_have_a_mean() -> None:
    assert means([1.7e308, 1.7e308, -1.7e308, -1.7e308], 2) == [1.7e308] * 2 + [-1.7e308] * 2


def test_all_alike_or_all_zero() -> None:
    assert means([5, 5, 5, 5, 5], 2) == [5] * 5
    assert means([0, 0, 0], 3) == [0] * 3


def test_fewer_than_k_are_an_outcome_of_their_own() -> None:
    assert aggregate_values(np.array([1.0, 2.0]), 3) == TooFew(2, 3)
    assert aggregate_values(np.empty(0), 1) == TooFew(0, 1)
    assert aggregate_tuples(np.array([[1.0, 2.0]]), 3) == TooFew(2, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_has_no_mean_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="missing, infinite"):
        aggregate_values(np.array([1.0, value]), 1)
    with pytest.raises(UsageError, match="missing, infinite"):
        aggregate_tuples(np.array([[1.0, value]]), 1)


def test_k_is_at_least_one() -> None:
    with pytest.raises(UsageError, match="k is 0"):
        aggregate_values(np.array([1.0]), 0)


def test_tuples_are_grouped_whatever_the_fields_units() -> None:
    corners = np.array([[0, 0], [0, 9e6], [1e-3, 0], [1e-3, 9e6]])
    tuples = np.repeat(corners, 5, axis=0).T + np.random.default_rng(2).normal(0, 1e-5, (2, 20))
    outcome = aggregate_tuples(tuples, 5)
    assert isinstance(outcome, Microaggregate)
    assert all(
        len(set(outcome.groups[start : start + 5].tolist())) == 1 for start in range(0, 20, 5)
    )


def test_large_sets_are_halved_first() -> None:
    tuples = np.random.default_rng(4).normal(size=(3, 3 * LARGEST_BLOCK))
    outcome = aggregate_tuples(tuples, 50)
    assert isinstance(outcome, Microaggregate)
    sizes = np.bincount(outcome.groups)
    assert sizes.min() >= 50
    assert sizes.max() < 100
    # Three fields in 245 groups: what is lost is a small part of the variance.
    assert (outcome.values - tuples).var() < 0.1 * tuples.var()
