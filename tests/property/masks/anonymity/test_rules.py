"""The earth mover's distance against every way to move the earth; persons against sets."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.masks.anonymity.domains import CategoryDomain
from penstock.masks.anonymity.rules import Census, Distance, DistinctDiversity, move_earth
from tests.support.scale import scaled

PATHS = {
    "a": ("ab", "abc", "*"),
    "b": ("ab", "abc", "*"),
    "c": ("abc", "*"),
    "d": ("de", "*"),
    "e": ("de", "*"),
    "f": ("*",),
}
DOMAIN = CategoryDomain("letter", PATHS)
HEIGHTS = {"ab": 1, "abc": 2, "de": 1, "*": 3}


def distance(kind: Distance, one: str, other: str) -> float:
    if one == other:
        return 0.0
    if kind is Distance.EQUAL:
        return 1.0
    if kind is Distance.ORDERED:
        return abs(DOMAIN.leaves.index(one) - DOMAIN.leaves.index(other)) / 5
    common = next(node for node in PATHS[one] if node in PATHS[other])
    return HEIGHTS[common] / 3


letters = st.sampled_from(sorted(PATHS))


@settings(deadline=None, max_examples=scaled(150))
@given(
    st.sampled_from(list(Distance)),
    st.integers(1, 6).flatmap(
        lambda size: st.tuples(*[st.lists(letters, min_size=size, max_size=size)] * 2)
    ),
)
def test_no_way_to_move_the_earth_is_shorter(
    kind: Distance, pair: tuple[list[str], list[str]]
) -> None:
    group, whole = pair
    least = min(
        sum(distance(kind, one, other) for one, other in zip(group, order, strict=True))
        for order in permutations(whole)
    ) / len(group)
    counts = [[side.count(leaf) for leaf in DOMAIN.leaves] for side in (group, whole)]
    found = move_earth(DOMAIN, kind, np.array([counts[0]], float), np.array(counts[1], float))
    assert np.isclose(found[0], least)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30))
def test_persons_and_values_are_counted_once(tuples: list[tuple[int, int]]) -> None:
    persons, values = (np.array(column, dtype=np.int64) for column in zip(*tuples, strict=True))
    census = Census(persons, values[None, :])
    rows = np.random.default_rng(len(tuples)).permutation(len(tuples))
    cuts = np.arange(1, len(tuples) + 1)
    rule = DistinctDiversity(0, CategoryDomain.flat("value", "wxyz"), 2)
    histograms = census.histograms_before(rule, rows, cuts)
    for cut, count in zip(cuts, census.persons_before(rows, cuts), strict=True):
        chosen = [tuples[row] for row in rows[:cut]]
        assert count == len({person for person, _ in chosen}) == census.count(rows[:cut])
        for histogram, counted in zip(histograms, (chosen, list(set(chosen))), strict=False):
            expected = [sum(value == code for _, value in counted) for code in range(4)]
            assert histogram[cut - 1].tolist() == expected
    assert len(histograms) == (1 if len({person for person, _ in tuples}) == len(tuples) else 2)
