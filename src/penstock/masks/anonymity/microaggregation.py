"""Microaggregation: values are replaced by the mean of a group of at least k alike.

    univariate     optimal: of all divisions into groups of ≥ k, one with the least squared error
    multivariate   MDAV (Domingo-Ferrer and Mateo-Sanz, 2002): groups of k around the tuples
                   farthest from the middle, on standardised values

Rules that hold here:
- Groups have k to 2k - 1 members. A larger one could be divided without losing more.
- Fewer than k values cannot be hidden: the answer is `TooFew`, and the caller has to say what
  becomes of them. They never come back as they are.
- The same input gives the same groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.masks.anonymity.domains import Floats, Integers

# MDAV looks at all tuples for every group. Larger sets are first halved, and halved again,
# so that the work per tuple does not grow with the set.
LARGEST_BLOCK: Final = 4096
# So many squared errors are held at once, to bound memory.
ERRORS_AT_ONCE: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Microaggregate:
    """The means that stand for the values, and the number of each value's group."""

    values: Floats
    groups: Integers


@dataclass(frozen=True, slots=True)
class TooFew:
    """There were fewer than k values: nothing may be published for them."""

    count: int
    k: int


def aggregate_values(values: Floats, k: int) -> Microaggregate | TooFew:
    """Replace numbers by group means with the least possible squared error.

    The best division has groups of neighbours in order (Hansen and Mukherjee, 2003), so the
    best division of the first i values is the best of the first i - g and a group of g, for
    some g from k to 2k - 1. Since g is at least k, k places in a row can be computed at once
    from those before them.
    """
    _check(values[None, :], k)
    count = values.size
    if count < k:
        return TooFew(count, k)
    order = np.argsort(values, kind="stable")
    scaled, exponents = _scale(values[None, order])
    ends = _divide(scaled[0], k)
    sizes = np.diff(ends)
    means = np.ldexp(np.add.reduceat(scaled[0], ends[:-1]) / sizes, exponents[0])
    numbers = np.repeat(np.arange(sizes.size, dtype=np.int64), sizes)
    groups = np.empty(count, dtype=np.int64)
    groups[order] = numbers
    return Microaggregate(means[groups], groups)


def _divide(ordered: Floats, k: int) -> npt.NDArray[np.intp]:
    """Return where the groups of the best division begin, and the end."""
    count = ordered.size
    sizes = np.arange(k, 2 * k)
    # The cost of the best division of so many values; 2k walls stand before the first.
    costs = np.full(count + 1 + 2 * k, np.inf)
    costs[2 * k] = 0.0
    chosen = np.zeros(count + 1, dtype=np.intp)
    step = max(1, ERRORS_AT_ONCE // k)
    for first in range(k, count + 1, step):
        last = min(first + step, count + 1)
        errors = _errors(ordered, first, last, k)
        for start in range(first, last, k):
            places = np.arange(start, min(start + k, last))
            begins = places[:, None] - sizes
            totals = costs[begins + 2 * k] + errors[places - first]
            best = totals.argmin(axis=1)
            costs[places + 2 * k] = totals[np.arange(best.size), best]
            chosen[places] = sizes[best]
    ends = [count]
    while ends[-1] > 0:
        ends.append(ends[-1] - int(chosen[ends[-1]]))
    return np.array(ends[::-1])


def _errors(ordered: Floats, first: int, last: int, k: int) -> Floats:
    """Return the squared error of the group of each size (k to 2k - 1) before each place.

    Groups grow by one value at a time, for all places at once (Welford's recurrence).
    Differences of running sums would be quicker and lose all digits beside an outlier.
    """
    places = np.arange(first, last)
    means = ordered[places - 1].copy()
    errors = np.zeros(places.size)
    table = np.empty((places.size, k))
    for size in range(1, 2 * k):
        if size > 1:
            gaps = ordered[np.maximum(places - size, 0)] - means
            errors += gaps * gaps * ((size - 1) / size)
            means += gaps / size
        if size >= k:
            table[:, size - k] = errors
    return table


def aggregate_tuples(tuples: Floats, k: int) -> Microaggregate | TooFew:
    """Replace tuples, given as (fields, tuples), by group means."""
    _check(tuples, k)
    count = tuples.shape[1]
    if count < k:
        return TooFew(count, k)
    scaled, exponents = _scale(tuples)
    spread = scaled.std(axis=1, keepdims=True)
    standard = (scaled - scaled.mean(axis=1, keepdims=True)) / np.where(spread > 0.0, spread, 1.0)
    members: list[npt.NDArray[np.intp]] = []
    for block in _halve(standard, max(LARGEST_BLOCK, 4 * k)):
        members += [block[group] for group in _group_around_extremes(standard[:, block], k)]
    groups = np.empty(count, dtype=np.int64)
    means = np.empty_like(scaled)
    for number, group in enumerate(members):
        groups[group] = number
        means[:, group] = scaled[:, group].mean(axis=1, keepdims=True)
    return Microaggregate(np.ldexp(means, exponents), groups)


def _halve(standard: Floats, largest: int) -> list[npt.NDArray[np.intp]]:
    """Halve across the widest field until no part is larger than allowed."""
    todo = [np.arange(standard.shape[1])]
    parts = []
    while todo:
        rows = todo.pop()
        if rows.size <= largest:
            parts.append(rows)
            continue
        lines = standard[:, rows]
        widest = int(lines.var(axis=1).argmax())
        order = rows[np.argsort(lines[widest], kind="stable")]
        todo += [order[rows.size // 2 :], order[: rows.size // 2]]
    return parts


def _group_around_extremes(standard: Floats, k: int) -> list[npt.NDArray[np.intp]]:
    """Take k around the tuple farthest from the middle, and k around the one farthest from it."""
    rows = np.arange(standard.shape[1])
    lines = standard
    groups = []
    while rows.size >= 3 * k:
        far = int(_distances(lines, lines.mean(axis=1)).argmax())
        extremes = (lines[:, far], lines[:, int(_distances(lines, lines[:, far]).argmax())])
        for extreme in extremes:
            near = np.argpartition(_distances(lines, extreme), k - 1)[:k]
            groups.append(rows[near])
            rest = np.ones(rows.size, dtype=np.bool_)
            rest[near] = False
            rows, lines = rows[rest], lines[:, rest]
    if rows.size >= 2 * k:
        far = int(_distances(lines, lines.mean(axis=1)).argmax())
        near = np.argpartition(_distances(lines, lines[:, far]), k - 1)[:k]
        groups.append(rows[near])
        rows = np.delete(rows, near)
    groups.append(rows)
    return groups


def _distances(lines: Floats, point: Floats) -> Floats:
    """Return the squared distances of all tuples from a point."""
    gaps = lines - point[:, None]
    distances: Floats = np.einsum("ij,ij->j", gaps, gaps)
    return distances


def _scale(tuples: Floats) -> tuple[Floats, npt.NDArray[np.intc]]:
    """Bring each field to at most 1 by a power of two, so that sums of it never overflow."""
    exponents = np.frexp(np.abs(tuples).max(axis=1, keepdims=True))[1]
    return np.ldexp(tuples, -exponents), exponents


def _check(tuples: Floats, k: int) -> None:
    """Refuse what has no mean."""
    if k < 1:
        raise UsageError(f"k is {k}", fix="give k as a whole number of at least 1")
    if not np.isfinite(tuples).all():
        raise UsageError(
            "a value is missing, infinite or no number",
            fix="refuse such records before they are grouped",
        )
