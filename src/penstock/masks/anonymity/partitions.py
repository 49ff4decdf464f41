"""Cut a set of tuples into groups: by the loss of each cut, or by neighbours, as CASTLE does.

    all tuples ─cut─┬─ left ─cut─┬─ group          each cut is across one quasi-identifier,
                    │            └─ group          at the place where the estimated loss
                    └─ right ─cut …                of both sides together is least

By neighbours a group begins with a tuple drawn at random, and takes one tuple each of the k - 1
persons whose tuples are nearest to it. What is left over joins the group whose first is nearest.

Rules that hold here:
- Every tuple is in one group, and every group fulfils the demands, if the whole does.
- Ranges are those of the tuples that are there, not halves of the domain, so a cut that
  frees one side of a few outliers is seen to be worth it.
- A side's estimated loss is its box's loss now, times its tuples, times the groups it can
  still be cut into to the power of -LOOKAHEAD: a large side will be cut further. Without
  it, cuts are greedy and lose about a tenth more.
- Cuts are tried at multiples of k persons from either end, which wastes no group, and where
  the value changes, if it has few: cutting a spike off (the many who have no capital gain)
  beats full groups.
- By loss, the same input gives the same groups.
- By neighbours, every group has at least k persons, if the whole has. Two tuples are as far
  from each other as is lost when they are generalized together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.domains import Floats, Integers, Space
from penstock.masks.anonymity.rules import Booleans, Census, Demands

Rows: TypeAlias = npt.NDArray[np.intp]

# Measured on Adult at twelve settings: .15 to .25 hardly differ; at .3, large blocks with
# small k are cut into slivers.
LOOKAHEAD: Final = 0.2
# So many multiples of k are tried from either end.
MOST_STEPS: Final = 512
# So many places where a value changes are tried; a value with more has no spikes to speak of.
MOST_CHANGES: Final = 64
# Up to this many tuples, all places are tried for all quasi-identifiers in one go.
SMALL: Final = 512


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where to cut: the estimated loss, the quasi-identifier, the place, and both sides' loss."""

    estimate: float
    axis: int
    place: int
    left: float
    right: float


def partition(
    space: Space,
    codes: Floats,
    census: Census,
    demands: Demands,
    references: Sequence[Floats] = (),
) -> list[Rows]:
    """Cut tuples into groups; codes are (quasi-identifiers, tuples)."""
    if codes.shape[1] == 0:
        return []
    cutter = _Cutter(space, codes, census, demands, references)
    lows, highs = codes.min(axis=1, keepdims=True), codes.max(axis=1, keepdims=True)
    # Each entry: the tuples in the order of every quasi-identifier, and their box's loss.
    todo = [(np.argsort(codes, axis=1, kind="stable"), float(space.losses(lows, highs)[0]))]
    is_left = np.zeros(codes.shape[1], dtype=np.bool_)
    groups = []
    while todo:
        orders, loss = todo.pop()
        cut = cutter.find(orders) if loss > 0.0 else None
        if cut is None:
            groups.append(orders[0])
            continue
        left = orders[cut.axis, : cut.place]
        is_left[left] = True
        # Each order has the same tuples, so as many marked ones.
        marks = is_left[orders]
        todo.append((orders[~marks].reshape(len(orders), -1), cut.right))
        todo.append((orders[marks].reshape(len(orders), -1), cut.left))
        is_left[left] = False
    return groups


class _Cutter:
    """Finds cuts of sets of tuples."""

    def __init__(
        self,
        space: Space,
        codes: Floats,
        census: Census,
        demands: Demands,
        references: Sequence[Floats],
    ) -> None:
        self._space = space
        self._codes = codes
        self._census = census
        self._demands = demands
        self._references = references
        # By how much a box's loss will shrink that so many persons are in.
        groups = np.arange(codes.shape[1] + 1) // demands.k
        self._shrinks = groups.clip(1) ** -LOOKAHEAD

    def find(self, orders: Rows) -> _Cut | None:
        """Return the best cut that leaves two sides which fulfil the demands."""
        size, k = orders.shape[1], self._demands.k
        every = np.arange(len(orders))
        varies = self._codes[every, orders[:, 0]] < self._codes[every, orders[:, -1]]
        axes = np.flatnonzero(varies)
        if size < 2 * k or not axes.size:
            return None
        if size <= SMALL and not self._demands.rules:
            return self._find_anywhere(axes, orders[axes])
        steps = np.arange(k, size - k + 1, k)
        # Of very many places, an even choice will do.
        steps = steps[:: -(-steps.size // MOST_STEPS)]
        grid = np.union1d(steps, size - steps) if size % k else steps
        best: _Cut | None = None
        for axis in axes.tolist():
            cut = self._find_across(axis, orders[axis], grid)
            if cut is not None and (best is None or cut.estimate < best.estimate):
                best = cut
        return best

    def _find_anywhere(self, axes: Rows, orders: Rows) -> _Cut | None:
        """Return the best cut at any place, across several quasi-identifiers at once."""
        size, k = orders.shape[1], self._demands.k
        codes = self._codes[:, orders]
        before, after = self._census.persons_around(orders)
        before, after = before[:, k - 1 : size - k], after[:, k : size - k + 1]
        left = self._space.losses(
            np.minimum.accumulate(codes[:, :, : size - k], axis=2)[:, :, k - 1 :],
            np.maximum.accumulate(codes[:, :, : size - k], axis=2)[:, :, k - 1 :],
        )
        turned = codes[:, :, : k - 1 : -1]
        right = self._space.losses(
            np.minimum.accumulate(turned, axis=2)[:, :, k - 1 :],
            np.maximum.accumulate(turned, axis=2)[:, :, k - 1 :],
        )[:, ::-1]
        places = np.arange(k, size - k + 1)
        estimates = left * places * self._shrinks[before]
        estimates += right * (size - places) * self._shrinks[after]
        estimates[(before < k) | (after < k)] = np.inf
        best = divmod(int(estimates.argmin()), places.size)
        if np.isinf(estimates[best]):
            return None
        return _Cut(
            float(estimates[best]),
            int(axes[best[0]]),
            int(places[best[1]]),
            float(left[best]),
            float(right[best]),
        )

    def _find_across(self, axis: int, order: Rows, grid: Rows) -> _Cut | None:
        """Return the best cut across one quasi-identifier."""
        codes = self._codes[:, order]
        size, k = order.size, self._demands.k
        places = self._places(codes[axis], grid)
        before = self._census.persons_before(order, places)
        after = self._census.persons_before(order[::-1], size - places)
        allowed = (before >= k) & (after >= k)
        if self._demands.rules:
            allowed &= self._keep_rules(order, places)
        if not allowed.any():
            return None
        left, right = self._losses(codes, places)
        estimates = left * places * self._shrinks[before]
        estimates += right * (size - places) * self._shrinks[after]
        estimates[~allowed] = np.inf
        best = int(estimates.argmin())
        return _Cut(
            float(estimates[best]), axis, int(places[best]), float(left[best]), float(right[best])
        )

    def _places(self, line: Floats, grid: Rows) -> Rows:
        """Return where to try: the grid, and where the value changes, if it has few."""
        k = self._demands.k
        changes = np.flatnonzero(line[k : line.size - k + 1] != line[k - 1 : line.size - k]) + k
        return grid if changes.size > MOST_CHANGES else np.union1d(grid, changes)

    def _losses(self, codes: Floats, places: Rows) -> tuple[Floats, Floats]:
        """Return the losses of the boxes before and after each place."""
        starts = np.concatenate(([0], places))
        lows = np.minimum.reduceat(codes, starts, axis=1)
        highs = np.maximum.reduceat(codes, starts, axis=1)
        left = self._space.losses(
            np.minimum.accumulate(lows[:, :-1], axis=1),
            np.maximum.accumulate(highs[:, :-1], axis=1),
        )
        right = self._space.losses(
            np.minimum.accumulate(lows[:, :0:-1], axis=1),
            np.maximum.accumulate(highs[:, :0:-1], axis=1),
        )
        return left, right[::-1]

    def _keep_rules(self, order: Rows, places: Rows) -> Booleans:
        """Say for each place whether both sides keep all rules."""
        kept = np.ones(places.size, dtype=np.bool_)
        for rule in self._demands.rules:
            reference = self._references[rule.column]
            for counts in self._census.histograms_before(rule, order, places):
                kept &= rule.holds(counts, reference)
            turned = (order.size - places)[::-1]
            for counts in self._census.histograms_before(rule, order[::-1], turned):
                kept &= rule.holds(counts, reference)[::-1]
        return kept


def split_by_neighbours(
    space: Space, codes: Floats, persons: Integers, k: int, generator: np.random.Generator
) -> list[Rows]:
    """Return the groups; codes are (quasi-identifiers, tuples)."""
    # Each person's tuples in an order of chance: the last is one drawn at random.
    buckets: dict[int, list[int]] = {}
    for row in generator.permutation(persons.size).tolist():
        buckets.setdefault(int(persons[row]), []).append(row)
    firsts: list[int] = []
    groups: list[list[int]] = []
    while len(buckets) >= k:
        others = list(buckets)
        first = others.pop(int(generator.integers(len(others))))
        start = buckets[first][-1]
        candidates = [buckets[person][-1] for person in others]
        nearest = np.argsort(_distances(space, codes, start, candidates), kind="stable")
        chosen = [first, *(others[place] for place in nearest[: k - 1].tolist())]
        firsts.append(start)
        groups.append([_take_last(buckets, person) for person in chosen])
    for bucket in buckets.values():
        home = int(_distances(space, codes, bucket[-1], firsts).argmin())
        groups[home] += bucket
    return [np.array(group, dtype=np.intp) for group in groups]


def _distances(space: Space, codes: Floats, row: int, others: list[int]) -> Floats:
    one, rest = codes[:, [row]], codes[:, others]
    return space.losses(np.minimum(one, rest), np.maximum(one, rest))


def _take_last(buckets: dict[int, list[int]], person: int) -> int:
    """Take one tuple of a person, and the bucket away if it was the last."""
    bucket = buckets[person]
    taken = bucket.pop()
    if not bucket:
        del buckets[person]
    return taken
