"""Windows over a view's rows: put together by time, changed together, released once.

    window of a row    [start, start + size), start a multiple of advance
    watermark          the newest time seen, less the grace
    a window is over   when its end lies at or before the watermark

Rules that hold here:
- Each window is published once, with all its rows; a row is published once for each window
  it lies in. A row all of whose windows are over already is late, and a dead letter.
- Where the time is that of arrival, the clock moves the watermark too, so that the last
  window of a silent stream ends; but only once all that arrived before has been read.
- Within a window rows keep the order of their offsets.
- A window falls short for an anonymizer that has some of its values, but fewer than k. Its
  rows, where the anonymizer wants them held, join the next window that has rows; there each
  row counts once, wherever it came from.
- At the end of the stream nothing is held on: rows that still wait are refused.
- Of several shards, all know the newest time of all rows: a window is over in all at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.anonymizers import (
    Microaggregation,
    MultivariateMicroaggregation,
    StatefulAnonymizer,
)
from penstock.masks.fields import Schema
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.stateful import (
    DeadLetter,
    StepOutcome,
    offsets_of,
    read_table,
    split_off,
    write_table,
)
from penstock.pipeline.anonymizers.window_anonymizers import apply_to_groups, number_parts
from penstock.pipeline.records.columns import (
    NO_TIME,
    OFFSET,
    PERSON,
    SUBJECT,
    TIME,
    WINDOW,
    Booleans,
    Integers,
    arrow_schema,
)

LATE: Final = "late: its windows were published already"
TIMELESS: Final = "the record does not say when it happened"
# Times beyond these have no window; they are some ten thousand years away.
EARLIEST: Final = -(2**48)
LATEST: Final = 2**48
HEAD: Final = struct.Struct(">qqq")
"""Begins what is saved: the watermark, the newest time, the length of the rows that wait."""


class WindowStep:
    """Holds rows back until their windows are over."""

    def __init__(
        self,
        window: Window,
        anonymizers: Sequence[StatefulAnonymizer],
        schema: Schema,
        *,
        by_arrival: bool,
        secret: bytes,
        saved: bytes | None = None,
        shards: int = 1,
    ) -> None:
        self._divided = shards > 1
        self._size = window.size
        self._advance = window.advance or window.size
        self._grace = window.grace
        self._anonymizers = tuple(anonymizers)
        self._by_arrival = by_arrival
        self._secret = secret
        self._schema = schema
        self._input = arrow_schema(schema, OFFSET, PERSON, TIME, SUBJECT)
        if saved is None:
            self._watermark = EARLIEST - self._grace
            self._newest = EARLIEST
            self._rows = self._input.empty_table()
            self._carried = self._rows
        else:
            self._watermark, self._newest, size = HEAD.unpack_from(saved)
            self._rows = read_table(saved[HEAD.size : HEAD.size + size])
            self._carried = read_table(saved[HEAD.size + size :])

    @property
    def held(self) -> int:
        """How many rows wait: for the end of a window, or for a window that can hide them."""
        if not self._carried.num_rows:
            return int(self._rows.num_rows)
        return int(np.union1d(self._rows[OFFSET], self._carried[OFFSET]).size)

    def save(self) -> bytes:
        """Return the watermark and the rows that wait."""
        rows = write_table(self._rows)
        head = HEAD.pack(self._watermark, self._newest, len(rows))
        return head + rows + write_table(self._carried)

    def feed(self, rows: pa.Table, now: int, newest: int = NO_TIME) -> StepOutcome:
        """Take rows in, and let the windows go that are over."""
        rows = rows.select(self._input.names).cast(self._input)
        within = pc.and_(pc.greater_equal(rows[TIME], EARLIEST), pc.less_equal(rows[TIME], LATEST))
        timed = pc.fill_null(within, fill_value=False)
        dead = [
            DeadLetter(offset, TIMELESS) for offset in offsets_of(rows.filter(pc.invert(timed)))
        ]
        rows = rows.filter(timed)
        late = self._starts_from(rows) + self._size <= self._watermark
        dead += [DeadLetter(offset, LATE) for offset in offsets_of(rows.filter(pa.array(late)))]
        self._rows = pa.concat_tables([self._rows, rows.filter(pa.array(~late))])
        own = int(rows[TIME].to_numpy().max()) if rows.num_rows else EARLIEST
        self._newest = max(self._newest, own, newest)
        reached = max(self._newest, now) if self._by_arrival else self._newest
        return self._let_go(max(self._watermark, reached - self._grace), dead)

    def forget(self, subjects: Integers, reason: str) -> list[DeadLetter]:
        """Let the rows of some people go unpublished; one may wait in both places."""
        self._rows, dead = split_off(self._rows, subjects, reason)
        self._carried, more = split_off(self._carried, subjects, reason)
        return list(dict.fromkeys(dead + more))

    @property
    def due(self) -> int | None:
        """When the clock ends the first window that has rows."""
        if not self._by_arrival:
            return None
        ends = self._find_over(LATEST + self._size)[1] + self._size
        return int(ends.min()) + self._grace if ends.size else None

    def flush(self) -> StepOutcome:
        """End all windows up to those of the newest time; later ones may still come."""
        last = self._newest // self._advance * self._advance + self._size
        return self._let_go(max(self._watermark, last), [], ending=True)

    def _starts_from(self, rows: pa.Table) -> Integers:
        """Return the start of the latest window of each row."""
        times: Integers = rows[TIME].to_numpy()
        return times // self._advance * self._advance

    def _let_go(
        self, watermark: int, dead: list[DeadLetter], *, ending: bool = False
    ) -> StepOutcome:
        places, starts = self._find_over(watermark)
        latest = self._starts_from(self._rows)
        rows = self._rows.take(pa.array(places))
        if may_hold(self._anonymizers):
            pool = pa.concat_tables([self._carried, rows]).combine_chunks()
            goes, starts, stays = hold_back(pool, starts, self._anonymizers, ending=ending)
            self._carried, rows = pool.take(pa.array(stays)), pool.take(pa.array(goes))
        rows = rows.append_column(WINDOW, pa.array(starts))
        self._rows = self._rows.filter(pa.array(latest + self._size > watermark)).combine_chunks()
        self._watermark = watermark
        parts: list[pa.Table] | None = [] if self._divided else None
        table, refused = apply_to_groups(
            rows, starts, self._anonymizers, self._schema, self._secret, parts
        )
        made = number_parts(parts) if parts else None
        return StepOutcome(table, dead + refused, parts=made)

    def _find_over(self, watermark: int) -> tuple[Integers, Integers]:
        """Return rows and windows that go now, ordered by window and then by offset."""
        latest = self._starts_from(self._rows)
        times = self._rows[TIME].to_numpy()
        places: list[Integers] = []
        starts: list[Integers] = []
        for back in range(-(-self._size // self._advance)):
            start = latest - back * self._advance
            end = start + self._size
            over = (end > times) & (end > self._watermark) & (end <= watermark)
            places.append(np.flatnonzero(over))
            starts.append(start[over])
        place, start = np.concatenate(places), np.concatenate(starts)
        order = np.lexsort((place, start))
        return place[order], start[order]


def may_hold(anonymizers: Sequence[StatefulAnonymizer]) -> bool:
    """Whether rows may have to wait for a later window."""
    return any(_holds(anonymizer) for anonymizer in anonymizers)


def _holds(anonymizer: StatefulAnonymizer) -> bool:
    return isinstance(anonymizer, Microaggregation) and anonymizer.shortfall == "hold"


def hold_back(
    pool: pa.Table, starts: Integers, anonymizers: Sequence[StatefulAnonymizer], *, ending: bool
) -> tuple[Integers, Integers, Integers]:
    """Return the places of rows that go, the windows they go with, and the places that stay.

    `starts` has the windows of the last rows of the pool, in order; the rows before these
    were held back earlier.
    """
    first = pool.num_rows - starts.size
    offsets: Integers = pool[OFFSET].to_numpy()
    needs = list(_find_needs(pool, anonymizers))
    waiting = np.arange(first)
    goes, windows = [], []
    changes = np.flatnonzero(np.diff(starts)) + 1
    for own in np.split(np.arange(first, pool.num_rows), changes) if starts.size else ():
        together = np.concatenate([waiting, own])
        # A row of a sliding window may meet itself; it comes once, in the order of rows.
        members = together[np.unique(offsets[together], return_index=True)[1]]
        if any(_falls_short(filled[members], k, lone) for filled, k, lone in needs):
            waiting = members
        else:
            waiting = waiting[:0]
            goes.append(members)
            windows.append(np.full(members.size, starts[own[0] - first]))
    if ending and waiting.size:
        # The last window fell short, so that none that goes has its start.
        goes.append(waiting)
        windows.append(np.full(waiting.size, starts[-1] if starts.size else 0))
        waiting = waiting[:0]
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *goes]), np.concatenate([none, *windows]), waiting


def _find_needs(
    pool: pa.Table, anonymizers: Sequence[StatefulAnonymizer]
) -> Iterator[tuple[Booleans, int, bool]]:
    """Yield which rows have a value to hide, among how many, and whether none need not."""
    for anonymizer in anonymizers:
        if isinstance(anonymizer, Microaggregation) and _holds(anonymizer):
            lines = [_is_filled(pool[key]) for key in anonymizer.keys]
            if isinstance(anonymizer, MultivariateMicroaggregation):
                yield np.logical_and.reduce(lines), anonymizer.k, False
            else:
                yield from ((line, anonymizer.k, True) for line in lines)


def _is_filled(column: pa.ChunkedArray) -> Booleans:
    """Say which values there are; one that is not finite counts as none."""
    numbers = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    filled: Booleans = np.isfinite(numbers)
    return filled


def _falls_short(filled: Booleans, k: int, none_is_fine: bool) -> bool:  # noqa: FBT001 - private
    count = int(filled.sum())
    return count < k and not (none_is_fine and not count)
