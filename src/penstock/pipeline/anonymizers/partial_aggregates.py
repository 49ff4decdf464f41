"""Aggregates of windows in parts: each shard makes one of its rows, and together they are whole.

    rows of a shard ─▶ part: count, sum, least or greatest, for each window ─┐
    rows of another ─▶ part ─────────────────────────────────────────────────┴▶ combine ─▶ fill in

Rules that hold here:
- The aggregate of a window is that of all its rows, however they are divided. Whole numbers are
  exact; a sum of decimals may differ in its last digits, as the order of adding does.
- A median and a mode cannot be made of parts: views with one have one shard. Nor can an aggregate
  whose fields another anonymizer of the window goes on with, or beside one that holds rows back.
- Null is no value: it counts in no aggregate. What does not fit into 64 bits is no sum, but null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.anonymizers.stateful import (
    Aggregation,
    Microaggregation,
    StatefulAnonymizer,
)
from penstock.masks.fields import Field, FieldType, Schema
from penstock.pipeline.records.columns import ARROW_TYPES, WINDOW, Integers

COMBINED: Final = frozenset({"sum", "count", "average", "min", "max"})
"""Modes of aggregation that can be made of parts."""
NUMBER: Final = "penstock:number"
COUNT: Final = "penstock:count"
WHOLE: Final = "penstock:whole"
TOTAL: Final = "penstock:total"
PARTS: Final = pa.schema(
    [
        (NUMBER, pa.int64()),
        (WINDOW, pa.int64()),
        (COUNT, pa.int64()),
        (WHOLE, pa.int64()),
        (TOTAL, pa.float64()),
    ]
)
"""One line for each aggregate, by its number, and window. Least and greatest values stand where
sums do: whole numbers and decimals each have a column, so that neither loses a digit."""
_INTEGERS: Final = frozenset({FieldType.INT, FieldType.LONG})
# Sums beyond this are near the end of 64 bits.
_MOST: Final = 2.0**62


def can_combine(anonymizers: Sequence[StatefulAnonymizer]) -> bool:
    """Whether what the anonymizers of a window make can be made in shards."""
    aggregated: set[str] = set()
    for anonymizer in anonymizers:
        keys = set(getattr(anonymizer, "keys", ()))
        if keys & aggregated:
            return False
        if isinstance(anonymizer, Aggregation):
            if anonymizer.aggregation_mode not in COMBINED:
                return False
            aggregated |= keys
    holds = any(isinstance(it, Microaggregation) and it.shortfall == "hold" for it in anonymizers)
    return not (aggregated and holds)


def numbered(anonymizers: Sequence[StatefulAnonymizer]) -> list[tuple[str, str]]:
    """Return field and mode of each aggregate, in the order of their numbers."""
    return [
        (key, anonymizer.aggregation_mode)
        for anonymizer in anonymizers
        if isinstance(anonymizer, Aggregation)
        for key in anonymizer.keys
    ]


def make_part(column: pa.Array, bounds: Integers, starts: Integers, mode: str) -> pa.Table:
    """Return the part of one aggregate: a line for each window, whose rows lie between bounds."""
    lengths = np.diff(bounds)
    groups = np.repeat(np.arange(lengths.size), lengths)[np.asarray(column.is_valid())]
    counts = np.bincount(groups, minlength=lengths.size).astype(np.int64)
    values = column.drop_null()
    whole, total = _no_figures(lengths.size)
    if mode != "count" and len(values):
        some = counts > 0
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])[some]
        if pa.types.is_integer(values.type):
            numbers = np.asarray(values.cast(pa.int64()))
            whole[some] = _reduce(numbers, first, mode)
        if not pa.types.is_integer(values.type) or mode in {"sum", "average"}:
            decimals = np.asarray(values.cast(pa.float64(), safe=False))
            total[some] = _reduce(decimals, first, mode)
    numbers = np.zeros(lengths.size, dtype=np.int64)
    return pa.table([numbers, starts, counts, whole, total], schema=PARTS)


def number_parts(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the parts of several aggregates as one table."""
    made = [
        part.set_column(0, NUMBER, pa.array(np.full(part.num_rows, number, dtype=np.int64)))
        for number, part in enumerate(parts)
    ]
    return pa.concat_tables([PARTS.empty_table(), *made])


def combine(parts: Iterable[pa.Table], modes: Sequence[str]) -> pa.Table:
    """Return the parts of all shards as one for each aggregate and window, in that order."""
    table = pa.concat_tables([PARTS.empty_table(), *parts]).combine_chunks()
    number, window = table[NUMBER].to_numpy(), table[WINDOW].to_numpy()
    # Stable: what floating-point sums are made of comes in the order of the shards.
    order = np.lexsort((window, number))
    number, window = number[order], window[order]
    new = np.ones(number.size, dtype=np.bool_)
    new[1:] = (np.diff(number) != 0) | (np.diff(window) != 0)
    first = np.flatnonzero(new)
    counts = table[COUNT].to_numpy()[order]
    wholes, totals = table[WHOLE].to_numpy()[order], table[TOTAL].to_numpy()[order]
    whole, total = _no_figures(first.size)
    for place, mode in enumerate(modes):
        own = number == place
        if mode != "count" and own.any():
            # A shard without a value has no part in the least or the greatest.
            filled = own & (counts > 0)
            keys = window[own & new]
            some, begin = np.unique(window[filled], return_index=True)
            if some.size:
                target = np.flatnonzero(number[first] == place)[np.searchsorted(keys, some)]
                whole[target] = _reduce(wholes[filled], begin, mode)
                total[target] = _reduce(totals[filled], begin, mode)
    summed = np.add.reduceat(counts, first) if first.size else counts
    return pa.table([number[first], window[first], summed, whole, total], schema=PARTS)


def finish(part: pa.Table, mode: str, output: Field) -> pa.Array:
    """Return the aggregate of each window, of lines that are whole."""
    kind = ARROW_TYPES[output.type]
    counts, total = part[COUNT].to_numpy(), part[TOTAL].to_numpy()
    none = counts == 0
    if mode == "count":
        return pa.array(counts, kind)
    if mode == "average":
        return pa.array(total / np.maximum(counts, 1), mask=none)
    if output.type in _INTEGERS:
        beyond = (np.abs(total) >= _MOST) if mode == "sum" else np.zeros_like(none)
        return pc.cast(pa.array(part[WHOLE].to_numpy(), mask=none | beyond), kind)
    return pc.cast(pa.array(total, mask=none), kind)


def fill_in(
    rows: pa.Table,
    parts: Iterable[pa.Table],
    anonymizers: Sequence[StatefulAnonymizer],
    schema: Schema,
) -> pa.Table:
    """Return rows that left a shard, with the aggregates of their windows."""
    aggregates = numbered(anonymizers)
    whole = combine(parts, [mode for _, mode in aggregates])
    windows = rows[WINDOW].to_numpy()
    numbers = whole[NUMBER].to_numpy()
    for number, (key, mode) in enumerate(aggregates):
        own = whole.slice(*_stretch(numbers, number))
        places = np.searchsorted(own[WINDOW].to_numpy(), windows)
        column = finish(own, mode, schema[key]).take(pa.array(places))
        rows = rows.set_column(rows.schema.get_field_index(key), rows.schema.field(key), column)
    return rows


def _stretch(numbers: Integers, number: int) -> tuple[int, int]:
    begin, end = np.searchsorted(numbers, [number, number + 1]).tolist()
    return begin, end - begin


def _no_figures(size: int) -> tuple[Integers, npt.NDArray[np.float64]]:
    return np.zeros(size, dtype=np.int64), np.zeros(size)


def _reduce(numbers: npt.NDArray[Any], first: Integers, mode: str) -> npt.NDArray[Any]:
    """Return the sum, the least or the greatest of runs of numbers."""
    with np.errstate(over="ignore"):
        if mode == "min":
            return np.fmin.reduceat(numbers, first)
        if mode == "max":
            return np.maximum.reduceat(numbers, first)
        return np.add.reduceat(numbers, first)
