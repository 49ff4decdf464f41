"""Differentially private aggregates of a view's windows: who counts, and who has paid for it.

    rows → known groups → a person's first in a window → held │ over → who can pay → figures
                ↓                     ↓                       │              ↓          + noise,
           dead letters          dead letters                 │         dead letters      once

Rules that hold here:
- Persons are protected, not records: what changes when one person's records come or go is
  bounded by the contribution times the bounds of a value, and the noise hides that much.
- What is held is bounded by persons, not by records: what can never count is not held.
- A shard has all records of its persons: what bounds a person within it bounds them in all. It
  keeps the ledger of its persons, and hands exact figures over; noise comes on their sum, once.
- The ledger counts with the commit that publishes the figures: either both count or none,
  and a window is never published twice with different noise.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.masks.fields import Schema
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.noisy_figures import (
    LaplaceNoise,
    Ledger,
    MakeNoise,
    NoisyFigures,
)
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
    NO_TIME,
    OFFSET,
    PERSON,
    SUBJECT,
    TIME,
    Booleans,
    Integers,
    arrow_schema,
)

NOBODY: Final = "the record does not say which person it is about"
NO_GROUP: Final = "the record belongs to none of the declared groups"
SPENT: Final = "budget spent: its person counts no longer"
TOO_MANY: Final = "contribution bound: enough records of its person count in this window"
HEAD: Final = struct.Struct(">qqqq")
"""Begins what is saved: the watermark, the newest time, the next window, the ledger's length."""
NOT_BEGUN: Final = -(2**62)


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
        shards: int = 1,
    ) -> None:
        self._parameters = parameters
        self._size = window.size
        self._grace = window.grace
        self._by_arrival = by_arrival
        held = {name: schema[name] for name in parameters.fields}
        self._input = arrow_schema(held, OFFSET, PERSON, TIME, SUBJECT)
        self._figures = NoisyFigures(parameters, window.size, schema, make_noise)
        self._divided = shards > 1
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

    def feed(self, rows: pa.Table, now: int, newest: int = NO_TIME) -> StepOutcome:
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
        own = int(rows[TIME].to_numpy().max()) if rows.num_rows else EARLIEST
        if self._by_arrival:
            newest = max(newest, now)
        self._newest = max(self._newest, own, newest)
        return self._let_go(max(self._watermark, self._newest - self._grace), dead)

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
        first, end = self._next, watermark // self._size * self._size
        if first is None or first >= end:
            return StepOutcome(self._figures.schema.empty_table(), dead)
        self._next = end
        paid = self._charge(rows[PERSON].to_numpy(), starts[over])
        dead += _letters(rows.filter(pa.array(~paid)), SPENT)
        part = self._figures.make_part(rows, paid, first, end)
        if self._divided:
            return StepOutcome(self._figures.schema.empty_table(), dead, parts=part)
        return StepOutcome(self._figures.publish([part]), dead)

    def _hold(self, rows: pa.Table) -> list[DeadLetter]:
        """Hold the rows that may count: the first so many of each person in each window."""
        named = np.asarray(rows[PERSON].is_valid())
        grouped = self._figures.find_groups(rows) >= 0
        dead = _letters(rows.filter(pa.array(~named)), NOBODY)
        dead += _letters(rows.filter(pa.array(named & ~grouped)), NO_GROUP)
        held = pa.concat_tables([self._rows, rows.filter(pa.array(named & grouped))])
        ranks = _ranks(held[PERSON].to_numpy(), _starts(held, self._size))
        fine = ranks < self._parameters.contribution
        dead += _letters(held.filter(pa.array(~fine)), TOO_MANY)
        self._rows = held.filter(pa.array(fine)).combine_chunks()
        return dead

    def _charge(self, persons: Integers, windows: Integers) -> Booleans:
        """Charge the persons of each window, one window after the other; tell whose rows count."""
        paid = np.zeros(persons.size, dtype=np.bool_)
        order = np.argsort(windows, kind="stable")
        found, begins = np.unique(windows[order], return_index=True)
        for window, members in zip(found.tolist(), np.split(order, begins[1:]), strict=False):
            self._ledger.enter(window)
            some, places = np.unique(persons[members], return_inverse=True)
            paid[members] = self._ledger.charge(some, self._parameters.cost)[places]
        return paid


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


def _letters(rows: pa.Table, reason: str) -> list[DeadLetter]:
    return [DeadLetter(offset, reason) for offset in offsets_of(rows)]
