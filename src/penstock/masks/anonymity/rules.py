"""Rules for groups: how many persons, and how diverse their sensitive values must be.

A rule of the last kind looks at histograms of one sensitive attribute, one row per group,
many groups at once. `l_diversity` and `t_closeness` hold the rules there are.

Rules that hold here:
- Sensitive values are counted twice, by tuples and by persons who have the value, and a rule
  must hold for both: one person with many tuples can neither make nor break a group.
- Nothing but `Census` counts persons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.domains import Domain, Floats, Integers

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
