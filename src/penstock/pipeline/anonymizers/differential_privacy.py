"""Differentially private aggregates of a view's windows: counts, sums and averages with noise.

    rows → known groups → a person's first in a window → held │ over → who can pay → figures
                ↓                     ↓                       │              ↓        + noise
           dead letters          dead letters                 │         dead letters   once

Rules that hold here:
- Persons are protected, not records: what changes when one person's records come or go is
  bounded by the contribution times the bounds of a value, and the noise hides that much.
- What is held is bounded by persons, not by records: what can never count is not held.
- Every window publishes a row for every declared group, whether records were there or not;
  so does a window without records that lies between others.
- Values become whole numbers on a grid and are cut to their bounds there, so that the bound
  of a sum is exact.
- The ledger counts with the commit that publishes the figures: either both count or none,
  and a window is never published twice with different noise.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.anonymizers.differential_privacy import (
    END,
    START,
    DifferentialPrivacy,
    NoisyAggregate,
)
from penstock.masks.fields import Schema
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.epsilon import LaplaceNoise, Ledger, MakeNoise, Noise
from penstock.pipeline.anonymizers.stateful import (
    DeadLetter,
    StepOutcome,
    offsets_of,
    read_table,
    split_off,
    write_table,
)
from penstock.pipeline.anonymizers.windows import EARLIEST, LATE, LATEST, TIMELESS
from penstock.pipeline.records.columns import (
    OFFSET,
    PERSON,
    SUBJECT,
    TIME,
    WINDOW,
    Booleans,
    Integers,
    arrow_schema,
)

NOBODY: Final = "the record does not say which person it is about"
NO_GROUP: Final = "the record belongs to none of the declared groups"
SPENT: Final = "budget spent: its person counts no longer"
TOO_MANY: Final = "contribution bound: enough records of its person count in this window"
GRID: Final = 20
"""Bits between the bound of a value and the grid that values are rounded to."""
MOST_CELLS: Final = 100_000
"""Rows of windows without records that one batch publishes at most; what is more is passed over."""
HEAD: Final = struct.Struct(">qqqq")
"""Begins what is saved: the watermark, the newest time, the next window, the ledger's length."""
NOT_BEGUN: Final = -(2**62)


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


class DifferentialPrivacyStep:
    """Holds rows back until their windows are over, and publishes noisy figures of them."""

    def __init__(
        self,
        parameters: DifferentialPrivacy,
        window: Window,
        schema: Schema,
        *,
        by_arrival: bool,
        saved: bytes | None = None,
        make_noise: MakeNoise = LaplaceNoise,
    ) -> None:
        self._parameters = parameters
        self._size = window.size
        self._grace = window.grace
        self._by_arrival = by_arrival
        held = {name: schema[name] for name in parameters.fields}
        self._input = arrow_schema(held, OFFSET, PERSON, TIME, SUBJECT)
        self._output = arrow_schema(parameters.output(schema), OFFSET, WINDOW)
        self._groups = list(itertools.product(*(group.values for group in parameters.groups)))
        self._noises = _make_noises(parameters, make_noise)
        self._watermark = EARLIEST - self._grace
        self._newest = EARLIEST
        self._next: int | None = None
        self._rows = self._input.empty_table()
        self._ledger = Ledger(parameters.budget_units, parameters.renew)
        if saved is not None:
            self._load(saved)

    @property
    def held(self) -> int:
        """How many rows wait for the end of their window."""
        return int(self._rows.num_rows)

    def save(self) -> bytes:
        """Return the time reached, the ledger, and the rows that wait."""
        times = (self._watermark, self._newest, NOT_BEGUN if self._next is None else self._next)
        ledger = self._ledger.save()
        head = HEAD.pack(*times, len(ledger))
        return head + ledger + write_table(self._rows)

    def _load(self, saved: bytes) -> None:
        self._watermark, self._newest, following, length = HEAD.unpack_from(saved)
        self._next = None if following == NOT_BEGUN else following
        self.inherit(saved)
        self._rows = read_table(saved[HEAD.size + length :])

    def inherit(self, saved: bytes) -> None:
        """Take over who has spent what from another step's `save`: budgets outlive changes."""
        *_, length = HEAD.unpack_from(saved)
        ledger = saved[HEAD.size : HEAD.size + length]
        parameters = self._parameters
        self._ledger = Ledger.load(ledger, parameters.budget_units, parameters.renew)

    def spent(self) -> dict[int, int]:
        """Return what each person has spent in the period at hand, in units."""
        return self._ledger.spent()

    def feed(self, rows: pa.Table, now: int) -> StepOutcome:
        """Take rows in, and publish the windows that are over."""
        rows = rows.select(self._input.names).cast(self._input)
        within = pc.and_(pc.greater_equal(rows[TIME], EARLIEST), pc.less_equal(rows[TIME], LATEST))
        timed = pc.fill_null(within, fill_value=False)
        dead = _letters(rows.filter(pc.invert(timed)), TIMELESS)
        rows = rows.filter(timed)
        late = _starts(rows, self._size) + self._size <= self._watermark
        dead += _letters(rows.filter(pa.array(late)), LATE)
        fresh = rows.filter(pa.array(~late))
        if fresh.num_rows:
            # Also those that do not count: which windows there are must not tell who counts.
            first = int(_starts(fresh, self._size).min())
            self._next = first if self._next is None else min(first, self._next)
        dead += self._hold(fresh)
        newest = int(rows[TIME].to_numpy().max()) if rows.num_rows else EARLIEST
        if self._by_arrival:
            newest = max(newest, now)
        self._newest = max(self._newest, newest)
        return self._let_go(max(self._watermark, newest - self._grace), dead)

    def forget(self, subjects: Integers, reason: str) -> list[DeadLetter]:
        """Let the rows of some people not count; what was published with them stays."""
        self._rows, dead = split_off(self._rows, subjects, reason)
        return dead

    @property
    def due(self) -> int | None:
        """When the clock ends the window to be published next."""
        if not self._by_arrival or self._next is None:
            return None
        return self._next + self._size + self._grace

    def flush(self) -> StepOutcome:
        """End all windows up to that of the newest time; later ones may still come."""
        end = (self._newest // self._size + 1) * self._size
        return self._let_go(max(self._watermark, end), [])

    def _let_go(self, watermark: int, dead: list[DeadLetter]) -> StepOutcome:
        starts = _starts(self._rows, self._size)
        over = starts + self._size <= watermark
        rows = self._rows.filter(pa.array(over)).combine_chunks()
        self._rows = self._rows.filter(pa.array(~over)).combine_chunks()
        self._watermark = watermark
        windows = self._find_windows(starts[over], watermark)
        if not windows.size:
            return StepOutcome(self._output.empty_table(), dead)
        cells, refused = self._choose(rows, windows)
        return StepOutcome(self._publish(rows, cells, windows), dead + refused)

    def _find_windows(self, starts: Integers, watermark: int) -> Integers:
        """Return the windows to publish, in order, whether they have rows or not."""
        first, end = self._next, watermark // self._size * self._size
        if first is None or first >= end:
            return np.empty(0, dtype=np.int64)
        self._next = end
        silent = (end - first) // self._size * len(self._groups) > MOST_CELLS
        return np.unique(starts) if silent else np.arange(first, end, self._size, dtype=np.int64)

    def _hold(self, rows: pa.Table) -> list[DeadLetter]:
        """Hold the rows that may count: the first so many of each person in each window."""
        named = np.asarray(rows[PERSON].is_valid())
        grouped = self._find_groups(rows) >= 0
        dead = _letters(rows.filter(pa.array(~named)), NOBODY)
        dead += _letters(rows.filter(pa.array(named & ~grouped)), NO_GROUP)
        held = pa.concat_tables([self._rows, rows.filter(pa.array(named & grouped))])
        ranks = _ranks(held[PERSON].to_numpy(), _starts(held, self._size))
        fine = ranks < self._parameters.contribution
        dead += _letters(held.filter(pa.array(~fine)), TOO_MANY)
        self._rows = held.filter(pa.array(fine)).combine_chunks()
        return dead

    def _find_groups(self, rows: pa.Table) -> Integers:
        """Return the number of each row's group, -1 where it has none."""
        places = np.zeros(rows.num_rows, dtype=np.int64)
        known = np.ones(rows.num_rows, dtype=np.bool_)
        for group in self._parameters.groups:
            found = pc.index_in(rows[group.key], value_set=pa.array(group.values, pa.string()))
            known &= np.asarray(found.is_valid())
            places = places * len(group.values) + found.fill_null(0).to_numpy().astype(np.int64)
        return np.where(known, places, -1)

    def _choose(self, rows: pa.Table, windows: Integers) -> tuple[Integers, list[DeadLetter]]:
        """Return the cell of each row, -1 where its person cannot pay, and letters for these."""
        window = np.searchsorted(windows, _starts(rows, self._size))
        paid = self._charge(rows[PERSON].to_numpy(), window, windows)
        cells = np.where(paid, window * len(self._groups) + self._find_groups(rows), -1)
        return cells, _letters(rows.filter(pa.array(~paid)), SPENT)

    def _charge(self, persons: Integers, window: Integers, windows: Integers) -> Booleans:
        """Charge the persons of each window, one window after the other; tell whose rows count."""
        paid = np.zeros(persons.size, dtype=np.bool_)
        order = np.argsort(window, kind="stable")
        for number in np.unique(window).tolist():
            members = order[slice(*np.searchsorted(window[order], [number, number + 1]))]
            self._ledger.enter(int(windows[number]))
            some, places = np.unique(persons[members], return_inverse=True)
            paid[members] = self._ledger.charge(some, self._parameters.cost)[places]
        return paid

    def _publish(self, rows: pa.Table, cells: Integers, windows: Integers) -> pa.Table:
        """Return one row for each group of each window, with noise."""
        groups, size = len(self._groups), windows.size * len(self._groups)
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
        for aggregate, noises in zip(self._parameters.aggregates, self._noises, strict=True):
            columns[aggregate.name] = _aggregate(aggregate, noises, rows, cells, size)
        return pa.table(columns).select(self._output.names).cast(self._output)


def _make_noises(parameters: DifferentialPrivacy, make_noise: MakeNoise) -> list[tuple[Noise, ...]]:
    """Return the noise of each aggregate: of its sum, of its count, or of both."""
    share = Fraction(str(parameters.epsilon)) / parameters.shares
    made: list[tuple[Noise, ...]] = []
    for aggregate in parameters.aggregates:
        bounds = [] if aggregate.mode == "count" else [Scale.of(aggregate).bound]
        bounds += [] if aggregate.mode == "sum" else [1]
        made.append(tuple(make_noise(parameters.contribution * it, share) for it in bounds))
    return made


def _aggregate(
    aggregate: NoisyAggregate, noises: tuple[Noise, ...], rows: pa.Table, cells: Integers, size: int
) -> pa.Array:
    counts = cells >= 0
    if aggregate.key is not None:
        counts &= _has_value(rows[aggregate.key])
    if aggregate.mode == "count":
        return pa.array(noises[0](np.bincount(cells[counts], minlength=size).astype(np.int64)))
    scale = Scale.of(aggregate)
    low, high = float(aggregate.min or 0), float(aggregate.max or 0)
    values = pc.cast(rows[aggregate.key], pa.float64(), safe=False).fill_null(0).to_numpy()
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, cells[counts], scale.place(values[counts], low, high))
    sums = noises[0](totals).astype(np.float64) * scale.unit
    if aggregate.mode == "sum":
        return pa.array(sums)
    numbers = noises[1](np.bincount(cells[counts], minlength=size).astype(np.int64))
    averages = np.clip(scale.centre + sums / np.maximum(numbers, 1), low, high)
    return pa.array(averages, mask=numbers < 1)


def _has_value(column: pa.ChunkedArray) -> Booleans:
    """Tell which rows have a value: null is none, and neither is what is no number."""
    return ~np.asarray(pc.is_null(column, nan_is_null=True))


def _ranks(persons: Integers, window: Integers) -> Integers:
    """Return how many rows of the same person and window stand before each row."""
    if not persons.size:
        return persons
    order = np.lexsort((persons, window))  # stable: rows keep their order
    new = np.ones(persons.size, dtype=np.bool_)
    new[1:] = (np.diff(persons[order]) != 0) | (np.diff(window[order]) != 0)
    begins = np.flatnonzero(new)
    lengths = np.diff(np.append(begins, persons.size))
    ranks = np.empty(persons.size, dtype=np.int64)
    ranks[order] = np.arange(persons.size) - np.repeat(begins, lengths)
    return ranks


def _starts(rows: pa.Table, size: int) -> Integers:
    """Return the start of the window of each row."""
    times: Integers = rows[TIME].to_numpy()
    return times // size * size


def _moments(milliseconds: Integers) -> pa.Array:
    return pa.array(milliseconds).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", "UTC"))


def _letters(rows: pa.Table, reason: str) -> list[DeadLetter]:
    return [DeadLetter(offset, reason) for offset in offsets_of(rows)]
