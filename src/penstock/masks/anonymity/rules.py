"""Rules for groups: how many persons, l-diversity, t-closeness.

The last two look at histograms of one sensitive attribute, one row per group, many groups at once.

l-diversity: every group has at least l well-represented sensitive values. Three readings of that
(Machanavajjhala and others, 2007), weakest first:
- distinct: l different values occur;
- entropy: the entropy of the values is at least log l, so none of them dominates;
- recursive (c, l): the most frequent value occurs less than c times as often as all values
  from the l-th most frequent on together.

t-closeness: in every group a sensitive attribute is distributed as in the whole. The distance
between two distributions is the earth mover's (Li and others, 2007): the least work of turning
one into the other, where moving a share from value i to value j costs

- equal:        1, whatever the values;
- ordered:      |i - j| / (values - 1), for numbers in buckets;
- hierarchical: the height of the lowest node above both / the height of the root.

All three have closed forms. The third costs a sum over the nodes: half the difference in
height to the parent, times what the node's leaves have too much or too little together.

Rules that hold here:
- Sensitive values are counted twice, by tuples and by persons who have the value, and a rule
  must hold for both: one person with many tuples can neither make nor break a group.
- Nothing but `Census` counts persons.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.anonymity.domains import CategoryDomain, Domain, Floats, Integers

Booleans = npt.NDArray[np.bool_]


class GroupRule(ABC):
    """A demand on the sensitive values of every group."""

    def __init__(self, column: int, domain: Domain) -> None:
        self.column = column
        self.domain = domain

    # Whether a group that keeps the rule goes on keeping it, whoever joins it.
    monotone: bool = False

    @property
    @abstractmethod
    def signature(self) -> tuple[object, ...]:
        """What is demanded; two rules with the same one demand the same."""

    @abstractmethod
    def holds(self, counts: Floats, reference: Floats) -> Booleans:
        """Say for each row of counts, one group each, whether the rule holds."""

    @abstractmethod
    def crowded(self, counts: Floats, reference: Floats) -> int | None:
        """Return the value that a group has too much of; None where leaving out cannot help."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What every group has to fulfil: at least k persons, and the rules."""

    k: int
    rules: tuple[GroupRule, ...] = ()


class Census:
    """Tuples with the persons and sensitive values that count for the demands."""

    def __init__(self, persons: Integers, sensitive: Integers) -> None:
        """Take any numbers for persons; sensitive codes are (attributes, tuples)."""
        unique, self._persons = np.unique(persons, return_inverse=True)
        self.sensitive = sensitive
        self.singles = unique.size == persons.size
        self._slots = np.empty(unique.size, dtype=np.intp)

    def __len__(self) -> int:
        return int(self._persons.size)

    def take(self, rows: npt.NDArray[np.intp]) -> Self:
        """Return the census of some of the tuples."""
        return type(self)(self._persons[rows], self.sensitive[:, rows])

    def persons_before(self, rows: npt.NDArray[np.intp], cuts: npt.NDArray[np.intp]) -> Integers:
        """Count the persons among the rows before each cut."""
        if self.singles:
            return cuts.astype(np.int64)
        firsts = self._first_seen(self._persons[rows], self._slots)
        return np.concatenate(([0], np.cumsum(firsts)))[cuts]

    def persons_around(self, orders: npt.NDArray[np.intp]) -> tuple[Integers, Integers]:
        """Count the persons up to each row of each order, and from each row on."""
        size = orders.shape[1]
        if self.singles:
            upto = np.broadcast_to(np.arange(1, size + 1), orders.shape)
            return upto, upto[:, ::-1]
        lines = np.arange(len(orders))[:, None] * self._slots.size
        ids = self._persons[orders] + lines
        slots = np.empty(len(orders) * self._slots.size, dtype=np.intp)
        first = self._first_seen(ids.ravel(), slots).reshape(orders.shape)
        last = self._first_seen(ids[:, ::-1].ravel(), slots).reshape(orders.shape)
        upto = np.cumsum(first, axis=1, dtype=np.int64)
        return upto, np.cumsum(last, axis=1, dtype=np.int64)[:, ::-1]

    def count(self, rows: npt.NDArray[np.intp]) -> int:
        """Count the persons among the rows."""
        if self.singles:
            return int(rows.size)
        seen = np.zeros(self._slots.size, dtype=np.bool_)
        seen[self._persons[rows]] = True
        return int(np.count_nonzero(seen))

    def histograms_before(
        self, rule: GroupRule, rows: npt.NDArray[np.intp], cuts: npt.NDArray[np.intp]
    ) -> list[Floats]:
        """Count the rule's sensitive values before each cut: by tuples, then by persons."""
        values = self.sensitive[rule.column, rows]
        size = rule.domain.size
        parts = np.searchsorted(cuts, np.arange(rows.size), side="right")
        cells = parts * size + values
        weights: list[Floats | None] = [None]
        if not self.singles:
            pairs = np.unique(self._persons[rows] * size + values, return_inverse=True)[1]
            slots = np.empty(pairs.max(initial=-1) + 1, dtype=np.intp)
            weights.append(self._first_seen(pairs, slots).astype(np.float64))
        shape = (cuts.size + 1, size)
        tables = [np.bincount(cells, weight, shape[0] * size).reshape(shape) for weight in weights]
        return [np.cumsum(table, axis=0, dtype=np.float64)[:-1] for table in tables]

    def fulfils(
        self, demands: Demands, rows: npt.NDArray[np.intp], references: Sequence[Floats]
    ) -> bool:
        """Say whether the rows could be published as one group."""
        return self.count(rows) >= demands.k and self.broken(demands, rows, references) is None

    def broken(
        self, demands: Demands, rows: npt.NDArray[np.intp], references: Sequence[Floats]
    ) -> tuple[GroupRule, Floats] | None:
        """Return the first rule that the rows break as one group, and the counts that show it."""
        everything = np.array([rows.size])
        for rule in demands.rules:
            for counts in self.histograms_before(rule, rows, everything):
                if not rule.holds(counts, references[rule.column])[0]:
                    return rule, counts
        return None

    @staticmethod
    def _first_seen(ids: npt.NDArray[np.intp], slots: npt.NDArray[np.intp]) -> Booleans:
        """Mark each id where it stands first."""
        places = np.arange(ids.size)
        # Of several assignments to one slot the last counts, so the order is turned around.
        slots[ids[::-1]] = places[::-1]
        first: Booleans = slots[ids] == places
        return first


# Equal shares have the entropy log l but for rounding.
ROUNDING: Final = 1e-9


class DistinctDiversity(GroupRule):
    """At least l different values."""

    monotone = True

    def __init__(self, column: int, domain: Domain, l: int) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "distinct", self.column, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Count the values that occur."""
        return np.asarray(np.count_nonzero(counts, axis=1) >= self.l)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Leaving tuples out never adds a value."""
        return None


class EntropyDiversity(GroupRule):
    """Entropy of at least log l."""

    def __init__(self, column: int, domain: Domain, l: float) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "entropy", self.column, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Compare the entropy."""
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        logarithms = np.log(np.where(shares > 0.0, shares, 1.0))
        return np.asarray(-(shares * logarithms).sum(axis=1) >= math.log(self.l) - ROUNDING)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Name the most frequent value."""
        return int(counts.argmax())


class RecursiveDiversity(GroupRule):
    """The most frequent value is outweighed, c times, by the rare ones."""

    def __init__(self, column: int, domain: Domain, c: float, l: int) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)
        if not 0.0 < c < math.inf:
            problem = Problem(f"{domain.name}.c", f"{c!r} is not positive", "give a number above 0")
            raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
        self.c = c

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "recursive", self.column, self.c, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Compare the greatest count with the tail."""
        ordered = np.sort(counts, axis=1)[:, ::-1]
        return np.asarray(ordered[:, 0] < self.c * ordered[:, int(self.l) - 1 :].sum(axis=1))

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Name the most frequent value."""
        return int(counts.argmax())


def _checked(domain: Domain, l: float) -> float:  # noqa: E741
    """Return l if groups can have it."""
    if not domain.size:
        problem = Problem(domain.name, "its values are not counted", "give it buckets")
        raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
    if not 1 < l <= domain.size:
        fix = f"give a number above 1 and at most {domain.size}, the number of values"
        problem = Problem(f"{domain.name}.l", f"{l!r} cannot be reached or demands nothing", fix)
        raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
    return l


class Distance(StrEnum):
    """What moving a share from one value to another costs."""

    EQUAL = "equal"
    ORDERED = "ordered"
    HIERARCHICAL = "hierarchical"


def move_earth(domain: Domain, distance: Distance, counts: Floats, reference: Floats) -> Floats:
    """Return the earth mover's distance of each row of counts from the reference."""
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    surplus = counts / totals - reference / max(reference.sum(), 1.0)
    if distance is Distance.EQUAL:
        return np.asarray(np.abs(surplus).sum(axis=1) / 2.0)
    below = np.cumsum(surplus, axis=1)
    if distance is Distance.ORDERED:
        return np.asarray(np.abs(below[:, :-1]).sum(axis=1) / max(1, domain.size - 1))
    if not isinstance(domain, CategoryDomain):
        raise TypeError(f"{quote(domain.name)} has no hierarchy")
    below = np.concatenate((np.zeros((len(below), 1)), below), axis=1)
    excess = np.abs(below[:, domain.lasts + 1] - below[:, domain.firsts])
    heights = domain.heights
    weights = (heights[domain.parents] - heights) / (2.0 * heights[0])
    return np.asarray(excess @ weights)


class Closeness(GroupRule):
    """At most t away from the reference: the distribution of all tuples seen so far."""

    def __init__(self, column: int, domain: Domain, t: float, distance: Distance) -> None:
        super().__init__(column, domain)
        problems = []
        if not 0.0 < t <= 1.0:
            fix = "give a number above 0 and at most 1"
            problems.append(Problem(f"{domain.name}.t", f"{t!r} is not a distance", fix))
        if distance is Distance.HIERARCHICAL and not isinstance(domain, CategoryDomain):
            fix = "give it a hierarchy, or use the distance 'ordered' or 'equal'"
            problems.append(Problem(f"{domain.name}.distance", "it has no hierarchy", fix))
        if not domain.size:
            fix = "give it buckets or categories"
            problems.append(Problem(f"{domain.name}", "its values are not counted", fix))
        if problems:
            raise InvalidError(f"t-closeness of {quote(domain.name)}", problems)
        self.t = t
        self.distance = distance

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "closeness", self.column, self.t, self.distance.value

    def holds(self, counts: Floats, reference: Floats) -> Booleans:
        """Compare the distances with t."""
        return np.asarray(move_earth(self.domain, self.distance, counts, reference) <= self.t)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:
        """Name the value with the greatest surplus."""
        row = counts[0]
        return int((row / max(row.sum(), 1.0) - reference / max(reference.sum(), 1.0)).argmax())
