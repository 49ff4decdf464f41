import numpy as np
import pytest

from penstock.masks.anonymity import Census, Demands, NumberDomain, Space, partition
from penstock.masks.anonymity.domains import Floats, Integers


def census(persons: Integers) -> Census:
    return Census(persons, np.empty((0, persons.size), dtype=np.int64))


def loss(space: Space, codes: Floats, groups: list[Integers]) -> float:
    total = 0.0
    for group in groups:
        part = codes[:, group]
        box = part.min(axis=1, keepdims=True), part.max(axis=1, keepdims=True)
        total += group.size * float(space.losses(*box)[0])
    return total / int(codes.shape[1])


def test_clusters_are_found() -> None:
    space = Space([NumberDomain("x", 0, 100), NumberDomain("y", 0, 100)])
    generator = np.random.default_rng(3)
    middles = np.array([[10, 10], [10, 90], [90, 10], [90, 90]], dtype=np.float64)
    codes = (np.repeat(middles, 7, axis=0) + generator.uniform(-5, 5, (28, 2))).T.copy()
    groups = partition(space, codes, census(np.arange(28)), Demands(5))
    assert sorted(tuple(sorted((group // 7).tolist())) for group in groups) == [
        (number,) * 7 for number in range(4)
    ]


def test_a_spike_is_cut_off_whole() -> None:
    space = Space([NumberDomain("gain", 0, 1000)])
    codes = np.concatenate((np.zeros(33), np.linspace(500, 1000, 12)))[None, :]
    groups = partition(space, codes, census(np.arange(45)), Demands(10))
    assert sorted(group.size for group in groups) == [12, 33]
    # All zero: nothing to be gained by cutting further, and more persons to hide among.


def test_a_person_with_many_tuples_counts_once() -> None:
    space = Space([NumberDomain("x", 0, 100)])
    codes = np.concatenate((np.zeros(50), np.arange(1.0, 10.0)))[None, :]
    persons = np.concatenate((np.zeros(50), np.arange(1, 10))).astype(np.int64)
    groups = partition(space, codes, census(persons), Demands(4))
    assert len(groups) == 2
    assert all(len(set(persons[group].tolist())) >= 4 for group in groups)


def test_nothing_makes_no_groups() -> None:
    space = Space([NumberDomain("x", 0, 100)])
    assert partition(space, np.empty((1, 0)), census(np.arange(0)), Demands(4)) == []


def test_cuts_lose_less_than_halves_at_the_median() -> None:
    """Compare with Mondrian: halve at the median of the widest side, down to 2k."""
    generator = np.random.default_rng(1)
    gains = np.where(generator.random(3000) < 0.9, 0, generator.exponential(5000, 3000))
    codes = np.array([generator.normal(40, 12, 3000).clip(17, 90), gains.clip(0, 99999)])
    space = Space([NumberDomain("age", 17, 90), NumberDomain("gain", 0, 99999)])
    halves, todo = [], [np.arange(3000)]
    while todo:
        rows = todo.pop()
        spans = np.ptp(codes[:, rows], axis=1) / [73, 99999]
        order = rows[np.argsort(codes[int(spans.argmax()), rows], kind="stable")]
        if rows.size < 40:
            halves.append(rows)
        else:
            todo += [order[: rows.size // 2], order[rows.size // 2 :]]
    groups = partition(space, codes, census(np.arange(3000)), Demands(20))
    assert loss(space, codes, groups) < 0.9 * loss(space, codes, halves)


@pytest.mark.parametrize("persons", [40, 100_000])
def test_small_sets_are_cut_like_large_ones(persons: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to look for a cut respect the demands, and lose about the same."""
    generator = np.random.default_rng(6)
    codes = generator.gamma(2, 10, (3, 400)).round().clip(0, 100)
    who = generator.integers(persons, size=400)
    space = Space([NumberDomain(name, 0, 100) for name in "xyz"])
    losses = []
    for small in (0, 1000):
        monkeypatch.setattr("penstock.masks.anonymity.partitions.SMALL", small)
        groups = partition(space, codes, census(who), Demands(6))
        assert sorted(np.concatenate(groups).tolist()) == list(range(400))
        assert all(len(set(who[group].tolist())) >= 6 for group in groups)
        losses.append(loss(space, codes, groups))
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
