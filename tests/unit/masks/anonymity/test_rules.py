"""l-diversity and t-closeness on examples small enough to do by hand."""

import math

import numpy as np
import pytest

from penstock.errors import InvalidError
from penstock.masks.anonymity import (
    CategoryDomain,
    Closeness,
    Distance,
    DistinctDiversity,
    EntropyDiversity,
    GroupRule,
    NumberDomain,
    RecursiveDiversity,
)
from penstock.masks.anonymity.rules import move_earth

ILLNESS = CategoryDomain.flat("illness", ["asthma", "covid", "flu", "none"])
NOTHING = np.zeros(4)


def holds(rule: GroupRule, *counts: float) -> bool:
    return bool(rule.holds(np.array([counts], dtype=np.float64), NOTHING)[0])


def test_distinct_counts_values() -> None:
    rule = DistinctDiversity(0, ILLNESS, 3)
    assert holds(rule, 97, 1, 0, 1)
    assert not holds(rule, 50, 0, 0, 50)


def test_entropy_asks_for_even_shares() -> None:
    rule = EntropyDiversity(0, ILLNESS, 2)
    assert holds(rule, 5, 5, 0, 0)
    assert not holds(rule, 6, 5, 0, 0)
    assert holds(EntropyDiversity(0, ILLNESS, 4), 3, 3, 3, 3)


def test_recursive_weighs_the_most_frequent_against_the_tail() -> None:
    rule = RecursiveDiversity(0, ILLNESS, 2, 3)
    assert holds(rule, 9, 4, 3, 2)  # 9 < 2 · (3 + 2)
    assert not holds(rule, 10, 4, 3, 2)
    assert not holds(rule, 1, 1, 0, 0)


def test_several_groups_are_judged_at_once() -> None:
    rule = DistinctDiversity(0, ILLNESS, 2)
    assert rule.holds(np.array([[1.0, 0, 0, 3], [4, 0, 0, 0]]), NOTHING).tolist() == [True, False]


@pytest.mark.parametrize("l", [0, 1, 5])
def test_what_no_group_can_fulfil_is_refused(l: int) -> None:  # noqa: E741
    for kind in (DistinctDiversity, EntropyDiversity):
        with pytest.raises(InvalidError, match="l-diversity of 'illness'"):
            kind(0, ILLNESS, l)


def test_numbers_need_buckets_to_be_counted() -> None:
    with pytest.raises(InvalidError, match="not counted"):
        DistinctDiversity(0, NumberDomain("salary", 0, 10), 2)
    with pytest.raises(InvalidError, match="not counted"):
        Closeness(0, NumberDomain("salary", 0, 10), 0.2, Distance.ORDERED)


@pytest.mark.parametrize("c", [0, -1, math.inf, math.nan])
def test_a_useless_c_is_refused(c: float) -> None:
    with pytest.raises(InvalidError, match=r"illness\.c"):
        RecursiveDiversity(0, ILLNESS, c, 2)


def test_the_salaries_of_the_paper_on_closeness() -> None:
    # Salaries 3k to 11k, one each; groups {3, 4, 5} and {6, 8, 11}: .375 and .167.
    salary = NumberDomain("salary", 3, 12, bucket=1)
    groups = np.zeros((2, 9))
    groups[0, [0, 1, 2]] = groups[1, [3, 5, 8]] = 1
    distances = move_earth(salary, Distance.ORDERED, groups, np.ones(9))
    assert distances == pytest.approx([0.375, 1 / 6])


def test_closeness_compares_with_the_reference() -> None:
    rule = Closeness(0, ILLNESS, 0.25, Distance.EQUAL)
    reference = np.array([10.0, 10, 10, 10])
    assert rule.holds(np.array([[2.0, 1, 1, 0], [3, 1, 0, 0]]), reference).tolist() == [True, False]
    assert rule.crowded(np.array([[1.0, 3, 2, 2]]), reference) == 1


def test_t_is_a_distance_and_a_hierarchy_is_needed_for_hierarchical() -> None:
    buckets = NumberDomain("salary", 0, 10, bucket=1)
    with pytest.raises(InvalidError) as caught:
        Closeness(0, buckets, 1.5, Distance.HIERARCHICAL)
    assert [problem.place for problem in caught.value.problems] == ["salary.t", "salary.distance"]
