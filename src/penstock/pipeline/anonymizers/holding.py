"""Rows of windows that are too small to hide them: held until they have company.

Rules that hold here:
- A window falls short for an anonymizer that has some of its values, but fewer than k.
- The rows of a window that falls short join the next one that has rows; there each row
  counts once, wherever it came from.
- At the end of the stream nothing is held on: the caller gets all rows, and refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.collective import (
    Collective,
    Microaggregation,
    MultivariateMicroaggregation,
)
from penstock.pipeline.records.columns import OFFSET, Booleans, Integers


def may_hold(anonymizers: Sequence[Collective]) -> bool:
    """Whether rows may have to wait for a later window."""
    return any(_holds(anonymizer) for anonymizer in anonymizers)


def _holds(anonymizer: Collective) -> bool:
    return isinstance(anonymizer, Microaggregation) and anonymizer.shortfall == "hold"


def hold_back(
    pool: pa.Table, starts: Integers, anonymizers: Sequence[Collective], *, ending: bool
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
    pool: pa.Table, anonymizers: Sequence[Collective]
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
