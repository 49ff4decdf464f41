"""Epsilon: the noise that keeps it, and the ledger of what each person has spent of a budget.

Rules that hold here:
- Noise is discrete Laplace on whole numbers. Sampling and its privacy map are OpenDP's; no
  noise is ever made from floating-point numbers, whose low bits give values away.
- A scale counts only if OpenDP's own privacy map says that it keeps what was asked for.
- Noise is drawn anew each time and cannot be drawn again: there is no seed.
- Nobody ever spends more than the budget; who cannot pay a window in full does not count in
  it, and is charged nothing. Amounts are whole units: adding them up loses nothing.
- The ledger is bounded: a new period forgets everybody, and where too many persons are known
  already further ones do not count until then.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, Protocol, Self

import numpy as np
import opendp.prelude as dp
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.pipeline.anonymizers.stateful import read_table, write_table
from penstock.pipeline.records.columns import Booleans, Integers

MAX_PERSONS: Final = 10_000_000
NEVER: Final = b"never"
_PERIOD: Final = b"period"
NUDGE: Final = 1 + 2.0**-40


class Ledger:
    """Persons, ordered, and what they have spent in the period at hand."""

    def __init__(self, budget: int, renew: int | None, most: int = MAX_PERSONS) -> None:
        self._budget = budget
        self._renew = renew
        self._most = most
        self._persons: Integers = np.empty(0, dtype=np.int64)
        self._spent: Integers = np.empty(0, dtype=np.int64)
        self._period: int | None = None

    @property
    def size(self) -> int:
        """How many persons are known."""
        return int(self._persons.size)

    def enter(self, moment: int) -> None:
        """Begin the period that a moment lies in, unless it is the one at hand or an earlier."""
        if self._renew is None:
            return
        period = moment // self._renew * self._renew
        if self._period is not None and period > self._period:
            self._persons, self._spent = self._persons[:0], self._spent[:0]
        self._period = period if self._period is None else max(period, self._period)

    def charge(self, persons: Integers, cost: int) -> Booleans:
        """Charge each person, named once and in order, that can pay; tell who could."""
        places = np.searchsorted(self._persons, persons)
        known = np.zeros(persons.size, dtype=np.bool_)
        inside = places < self._persons.size
        known[inside] = self._persons[places[inside]] == persons[inside]
        paid = np.zeros(persons.size, dtype=np.bool_)
        old = places[known]
        paid[known] = self._spent[old] + cost <= self._budget
        self._spent[old[paid[known]]] += cost
        if cost <= self._budget:
            room = max(self._most - self._persons.size, 0)
            fresh = np.flatnonzero(~known)[:room]
            paid[fresh] = True
            if fresh.size:
                self._persons = np.insert(self._persons, places[fresh], persons[fresh])
                self._spent = np.insert(self._spent, places[fresh], cost)
        return paid

    def spent(self) -> dict[int, int]:
        """Return what each known person has spent."""
        return dict(zip(self._persons.tolist(), self._spent.tolist(), strict=True))

    def save(self) -> bytes:
        """Write everything down."""
        period = NEVER if self._period is None else str(self._period).encode()
        table = pa.table({"person": self._persons, "spent": self._spent})
        return write_table(table.replace_schema_metadata({_PERIOD: period}))

    @classmethod
    def load(cls, saved: bytes, budget: int, renew: int | None) -> Self:
        """Read what `save` wrote; budget and period may be others by now."""
        made = cls(budget, renew)
        table = read_table(saved)
        made._persons = table["person"].to_numpy().copy()
        made._spent = table["spent"].to_numpy().copy()
        period = table.schema.metadata[_PERIOD]
        made._period = None if period == NEVER else int(period)
        return made


dp.enable_features("contrib")


class Noise(Protocol):
    """Adds noise to whole numbers."""

    def __call__(self, values: Integers) -> Integers:
        """Return the values with noise."""


class MakeNoise(Protocol):
    """Makes noise that hides a change of the values by so much in all, within epsilon."""

    def __call__(self, sensitivity: int, epsilon: Fraction) -> Noise:
        """Return the noise."""


class LaplaceNoise:
    """Discrete Laplace noise that hides `sensitivity` within `epsilon`."""

    def __init__(self, sensitivity: int, epsilon: Fraction) -> None:
        make: Any = dp.m.make_laplace
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
        scale = float(sensitivity / epsilon)
        while True:
            self._measurement = make(*space, scale=scale)
            self.epsilon: float = self._measurement.map(sensitivity)
            if Fraction(self.epsilon) <= epsilon:
                break
            # OpenDP rounds up what a scale tells; a hair more noise makes up for it.
            scale *= NUDGE
        self.scale = scale

    def __call__(self, values: Integers) -> Integers:
        """Return the values with noise; what would leave the range of 64 bits stays at its end."""
        if not values.size:
            return values
        return np.asarray(self._measurement(values.tolist()), dtype=np.int64)
