"""The figures of differentially private windows: counts, sums and averages, with noise.

    rows of a shard that count ─▶ part: exact figures ─┐
    rows of another ──────────▶ part ──────────────────┴▶ sum ─▶ noise, once ─▶ published

Rules that hold here:
- Every window publishes a row for every declared group, whether records were there or not;
  so does a window without records that lies between others.
- Values become whole numbers on a grid and are cut to their bounds there, so that the bound of a
  sum is exact, and so that parts add up to the same figure however persons are divided.
- Noise is drawn once for each figure, on the sum of all parts, never on a part: what is published
  is the same mechanism with the same epsilon, whatever the number of shards.
- Parts are exact, and as private as the records: they go where records go, and no further.
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

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.differential_privacy import (
    END,
    START,
    DifferentialPrivacy,
    NoisyAggregate,
)
from penstock.masks.fields import Schema
from penstock.pipeline.anonymizers.stateful import read_table, write_table
from penstock.pipeline.records.columns import (
    OFFSET,
    TIME,
    WINDOW,
    Booleans,
    Integers,
    arrow_schema,
)

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
        # Loaded here: all processes that keep state load this module, and few of them draw noise.
        import opendp.prelude as dp  # noqa: PLC0415

        dp.enable_features("contrib")
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


GRID: Final = 20
"""Bits between the bound of a value and the grid that values are rounded to."""
MOST_CELLS: Final = 100_000
"""Rows of windows without records that one batch publishes at most; what is more is passed over."""
_GROUP: Final = "penstock:group"
_COUNT: Final = "penstock:count:{}"
_TOTAL: Final = "penstock:total:{}"
_FIRST: Final = b"first"
_END: Final = b"end"


@dataclass(frozen=True, slots=True)
class Scale:
    """A grid of whole numbers for the values of a field: centre + number * unit."""

    centre: float
    unit: float
    bound: int
    """The greatest number, and the least with a minus."""

    @classmethod
    def of(cls, aggregate: NoisyAggregate) -> Scale:
        """Return the grid of a sum or an average; averages are taken around the middle."""
        low, high = float(aggregate.min or 0), float(aggregate.max or 0)
        middle = (low + high) / 2 if aggregate.mode == "average" else 0.0
        reach = max(high - middle, middle - low)
        # A power of two: dividing and multiplying by it are exact.
        unit = 2.0 ** (math.floor(math.log2(reach)) - GRID)
        return cls(middle, unit, math.ceil(reach / unit))

    def place(self, values: npt.NDArray[np.float64], low: float, high: float) -> Integers:
        """Cut values to their bounds and put them on the grid."""
        numbers = np.rint((np.clip(values, low, high) - self.centre) / self.unit)
        return np.clip(numbers.astype(np.int64), -self.bound, self.bound)


class NoisyFigures:
    """Makes exact figures of rows, and noisy ones of the exact figures of all shards."""

    def __init__(
        self,
        parameters: DifferentialPrivacy,
        size: int,
        schema: Schema,
        make_noise: MakeNoise = LaplaceNoise,
    ) -> None:
        self._parameters = parameters
        self._size = size
        self.schema = arrow_schema(parameters.output(schema), OFFSET, WINDOW)
        self._groups = list(itertools.product(*(group.values for group in parameters.groups)))
        self._noises = _make_noises(parameters, make_noise)

    def find_groups(self, rows: pa.Table) -> Integers:
        """Return the number of each row's group, -1 where it has none."""
        places = np.zeros(rows.num_rows, dtype=np.int64)
        known = np.ones(rows.num_rows, dtype=np.bool_)
        for group in self._parameters.groups:
            found = pc.index_in(rows[group.key], value_set=pa.array(group.values, pa.string()))
            known &= np.asarray(found.is_valid())
            places = places * len(group.values) + found.fill_null(0).to_numpy().astype(np.int64)
        return np.where(known, places, -1)

    def make_part(self, rows: pa.Table, counts: Booleans, first: int, end: int) -> pa.Table:
        """Return the exact figures of rows that count, for windows from `first` to before `end`.

        Rows that do not count have lines too: which windows there are must not tell who counts.
        """
        starts = rows[TIME].to_numpy() // self._size * self._size
        numbers = starts // self._size * len(self._groups) + self.find_groups(rows)
        lines, places = np.unique(numbers, return_inverse=True)
        windows, groups = np.divmod(lines, len(self._groups))
        columns: dict[str, Any] = {WINDOW: windows * self._size, _GROUP: groups}
        for number, aggregate in enumerate(self._parameters.aggregates):
            total, count = _sum_up(aggregate, rows, counts, places.reshape(-1), lines.size)
            columns[_TOTAL.format(number)] = total
            columns[_COUNT.format(number)] = count
        about = {_FIRST: str(first).encode(), _END: str(end).encode()}
        return pa.table(columns).replace_schema_metadata(about)

    def publish(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Return one row for each group of each window, with noise on the sum of the parts."""
        if not parts:
            return self.schema.empty_table()
        groups = len(self._groups)
        whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        windows = self._find_windows(parts, whole[WINDOW].to_numpy())
        cells = np.searchsorted(windows, whole[WINDOW].to_numpy()) * groups
        cells += whole[_GROUP].to_numpy()
        starts = np.repeat(windows, groups)
        columns: dict[str, Any] = {
            START: _moments(starts),
            END: _moments(starts + self._size),
            # No record of the stream has a negative offset; this tells rows of a window apart.
            OFFSET: -1 - np.tile(np.arange(groups, dtype=np.int64), windows.size),
            WINDOW: starts,
        }
        for place, group in enumerate(self._parameters.groups):
            columns[group.key] = [cell[place] for cell in self._groups] * windows.size
        aggregates = zip(self._parameters.aggregates, self._noises, strict=True)
        for number, (aggregate, noises) in enumerate(aggregates):
            figures = np.zeros((2, starts.size), dtype=np.int64)
            np.add.at(figures[0], cells, whole[_TOTAL.format(number)].to_numpy())
            np.add.at(figures[1], cells, whole[_COUNT.format(number)].to_numpy())
            columns[aggregate.name] = _add_noise(aggregate, noises, *figures)
        return pa.table(columns).select(self.schema.names).cast(self.schema)

    def _find_windows(self, parts: Sequence[pa.Table], filled: Integers) -> Integers:
        """Return the windows to publish, in order, whether they have rows or not."""
        about = [part.schema.metadata for part in parts]
        first = min(int(it[_FIRST]) for it in about)
        end = max(int(it[_END]) for it in about)
        silent = (end - first) // self._size * len(self._groups) > MOST_CELLS
        return np.unique(filled) if silent else np.arange(first, end, self._size, dtype=np.int64)


def _make_noises(parameters: DifferentialPrivacy, make_noise: MakeNoise) -> list[tuple[Noise, ...]]:
    """Return the noise of each aggregate: of its sum, of its count, or of both."""
    share = Fraction(str(parameters.epsilon)) / parameters.shares
    made: list[tuple[Noise, ...]] = []
    for aggregate in parameters.aggregates:
        bounds = [] if aggregate.mode == "count" else [Scale.of(aggregate).bound]
        bounds += [] if aggregate.mode == "sum" else [1]
        made.append(tuple(make_noise(parameters.contribution * it, share) for it in bounds))
    return made


def _sum_up(
    aggregate: NoisyAggregate, rows: pa.Table, counts: Booleans, lines: Integers, size: int
) -> tuple[Integers, Integers]:
    """Return the exact sum, on the grid, and the number of values of each line."""
    totals = np.zeros(size, dtype=np.int64)
    if aggregate.key is not None:
        counts = counts & _has_value(rows[aggregate.key])
    if aggregate.mode != "count":
        low, high = float(aggregate.min or 0), float(aggregate.max or 0)
        values = pc.cast(rows[aggregate.key], pa.float64(), safe=False).fill_null(0).to_numpy()
        np.add.at(totals, lines[counts], Scale.of(aggregate).place(values[counts], low, high))
    return totals, np.bincount(lines[counts], minlength=size).astype(np.int64)


def _add_noise(
    aggregate: NoisyAggregate, noises: tuple[Noise, ...], totals: Integers, counts: Integers
) -> pa.Array:
    """Return the figures that are published, of the exact ones of all shards together."""
    if aggregate.mode == "count":
        return pa.array(noises[0](counts))
    scale = Scale.of(aggregate)
    sums = noises[0](totals).astype(np.float64) * scale.unit
    if aggregate.mode == "sum":
        return pa.array(sums)
    low, high = float(aggregate.min or 0), float(aggregate.max or 0)
    numbers = noises[1](counts)
    averages = np.clip(scale.centre + sums / np.maximum(numbers, 1), low, high)
    return pa.array(averages, mask=numbers < 1)


def _has_value(column: pa.ChunkedArray) -> Booleans:
    """Tell which rows have a value: null is none, and neither is what is no number."""
    return ~np.asarray(pc.is_null(column, nan_is_null=True))


def _moments(milliseconds: Integers) -> pa.Array:
    return pa.array(milliseconds).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", "UTC"))
