"""Anonymizers of windows, over many windows at once: aggregation, shuffling, microaggregation.

Rules that hold here:
- Rows come ordered by window; a window is a run of rows with one start.
- Null is no value: it counts in no aggregate and stays null in microaggregation.
- A window in which an anonymizer cannot hide its values never passes them as they are.
- In one of several shards, aggregates are left open, and filled in from the parts of all:

    rows of a shard ─▶ part: count, sum, least or greatest, for each window ─┐
    rows of another ─▶ part ─────────────────────────────────────────────────┴▶ combine ─▶ fill in

- The aggregate of a window is that of all its rows, however they are divided. Whole numbers are
  exact; a sum of decimals may differ in its last digits, as the order of adding does.
- A median and a mode cannot be made of parts: views with one have one shard. Nor can an aggregate
  whose fields another anonymizer of the window goes on with, or beside one that holds rows back.
- What does not fit into 64 bits is no sum, but null.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.anonymizers import (
    Aggregation,
    Microaggregation,
    MultivariateMicroaggregation,
    Shuffling,
    StatefulAnonymizer,
)
from penstock.masks.anonymity.microaggregation import TooFew, aggregate_tuples, aggregate_values
from penstock.masks.fields import Field, FieldType, Schema
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.records.columns import ARROW_TYPES, OFFSET, WINDOW, Booleans, Integers

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


TOO_FEW: Final = "{}: the window has fewer than {} records"

Floats = npt.NDArray[np.float64]


def apply_to_groups(
    rows: pa.Table,
    windows: Integers,
    anonymizers: Sequence[StatefulAnonymizer],
    schema: Schema,
    secret: bytes,
    parts: list[pa.Table] | None = None,
) -> tuple[pa.Table, list[DeadLetter]]:
    """Return rows with the anonymizers applied in order, and those that were refused.

    Where rows are those of one shard, what its aggregates need of them is added to `parts`.
    """
    dead: list[DeadLetter] = []
    columns = {name: rows[name].combine_chunks() for name in (*schema, OFFSET, WINDOW)}
    for place, anonymizer in enumerate(anonymizers):
        bounds = _bounds(windows)
        kept = np.ones(windows.size, dtype=np.bool_)
        if isinstance(anonymizer, Aggregation):
            after, mode = anonymizer.output(schema), anonymizer.aggregation_mode
            for key in anonymizer.keys:
                if parts is None:
                    columns[key] = _aggregate(columns[key], bounds, mode, after[key])
                else:
                    parts.append(make_part(columns[key], bounds, windows[bounds[:-1]], mode))
                    columns[key] = pa.nulls(windows.size, ARROW_TYPES[after[key].type])
        elif isinstance(anonymizer, Shuffling):
            _shuffle(columns, bounds, windows, anonymizer, secret + place.to_bytes(4))
        elif isinstance(anonymizer, Microaggregation):
            kept = _microaggregate(columns, bounds, anonymizer)
        else:
            raise TypeError(f"{anonymizer.name} is not an anonymizer of windows")
        schema = anonymizer.output(schema)
        if not kept.all():
            reason = TOO_FEW.format(anonymizer.name, getattr(anonymizer, "k", 0))
            gone = columns[OFFSET].filter(pa.array(~kept)).to_pylist()
            dead += [DeadLetter(offset, reason) for offset in sorted(set(gone))]
            columns = {name: column.filter(pa.array(kept)) for name, column in columns.items()}
            windows = windows[kept]
    return pa.table(columns), dead


def _bounds(windows: Integers) -> Integers:
    """Return where runs of equal windows begin, and the end of the last."""
    if not windows.size:
        return np.zeros(1, dtype=np.int64)
    changes = np.flatnonzero(np.diff(windows)) + 1
    return np.concatenate([[0], changes, [windows.size]]).astype(np.int64)


def _aggregate(column: pa.Array, bounds: Integers, mode: str, output: Field) -> pa.Array:
    kind = ARROW_TYPES[output.type]
    lengths = np.diff(bounds)
    if not lengths.size:
        return pa.array([], kind)
    groups = np.repeat(np.arange(lengths.size), lengths)
    if mode in COMBINED:
        results = finish(make_part(column, bounds, bounds[:-1], mode), mode, output)
        return pc.cast(results, kind).take(pa.array(groups))
    valid = np.asarray(column.is_valid())
    counts = np.bincount(groups[valid], minlength=lengths.size)
    values = column.drop_null()
    if not len(values):
        return pa.nulls(groups.size, kind)
    if mode == "median":
        results = _find_median(values, groups[valid], counts)
    else:
        # The aggregate is one of the values: found by its place, whatever its type.
        places = _find_mode(values, groups[valid], counts)
        taken = values.take(pa.array(places))
        results = pc.if_else(pa.array(counts > 0), taken, pa.nulls(counts.size, column.type))
    return pc.cast(results, kind).take(pa.array(groups))


def _find_mode(values: pa.Array, groups: Integers, counts: Integers) -> Integers:
    """Return the place of each group's most frequent value; of equals, of the least value."""
    _, ranks = np.unique(_sortable(values), return_inverse=True)
    order = np.lexsort((ranks, groups))
    sorted_groups, sorted_ranks = groups[order], ranks[order]
    new = np.ones(order.size, dtype=np.bool_)
    new[1:] = (np.diff(sorted_groups) != 0) | (np.diff(sorted_ranks) != 0)
    begins = np.flatnonzero(new)
    lengths = np.diff(np.append(begins, order.size))
    best = np.lexsort((sorted_ranks[begins], -lengths, sorted_groups[begins]))
    leads = begins[best]
    chosen = np.zeros(counts.size, dtype=np.int64)
    # Written backwards, so that the best of each group is written last.
    chosen[sorted_groups[leads][::-1]] = order[leads][::-1]
    return chosen


def _sortable(values: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_string(values.type):
        return np.asarray(values.to_pylist(), dtype=object)
    if pa.types.is_temporal(values.type):
        wide = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
        return np.asarray(values.cast(wide))
    return np.asarray(values)


def _find_median(values: pa.Array, groups: Integers, counts: Integers) -> pa.Array:
    numbers = np.asarray(pc.cast(values, pa.float64()))
    ordered = numbers[np.lexsort((numbers, groups))]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    last = ordered.size - 1
    low = ordered[np.minimum(first + np.maximum(counts - 1, 0) // 2, last)]
    high = ordered[np.minimum(first + counts // 2, last)]
    return pa.array((low + high) / 2, mask=counts == 0)


def _shuffle(
    columns: dict[str, pa.Array],
    bounds: Integers,
    windows: Integers,
    anonymizer: Shuffling,
    secret: bytes,
) -> None:
    keys = anonymizer.keys
    orders = {key: np.arange(windows.size) for key in keys}
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        # Who knows the secret could undo it; a replay shuffles the same way.
        words = f"{anonymizer.seed}/{windows[first]}".encode()
        seed = int.from_bytes(hashlib.blake2b(words, key=secret[:64]).digest()[:32])
        generator = np.random.default_rng(seed)
        order = first + generator.permutation(end - first)
        for key in keys:
            orders[key][first:end] = order
            if anonymizer.shuffle_individually:
                order = first + generator.permutation(end - first)
    for key in keys:
        columns[key] = columns[key].take(pa.array(orders[key]))


def _microaggregate(
    columns: dict[str, pa.Array], bounds: Integers, anonymizer: Microaggregation
) -> Booleans:
    """Replace values by means of groups; return which rows may stay."""
    keys, k = anonymizer.keys, anonymizer.k
    numbers = np.stack(
        [_finite(np.asarray(pc.cast(columns[key], pa.float64()).to_numpy(zero_copy_only=False)))
         for key in keys]
    )  # fmt: skip
    made = np.full_like(numbers, np.nan)
    kept = np.ones(numbers.shape[1], dtype=np.bool_)
    multivariate = isinstance(anonymizer, MultivariateMicroaggregation)
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = numbers[:, first:end]
        if multivariate:
            full = ~np.isnan(part).any(axis=0)
            found = aggregate_tuples(part[:, full], k)
            hidden = not isinstance(found, TooFew)
            if not isinstance(found, TooFew):
                made[:, first:end][:, full] = found.values
        else:
            hidden = True
            for line, target in zip(part, made[:, first:end], strict=True):
                full = ~np.isnan(line)
                each = aggregate_values(line[full], k)
                if isinstance(each, TooFew):
                    hidden = hidden and not full.any()
                else:
                    target[full] = each.values
        # What could be held was held before; what is still short here is at its end.
        if not hidden and anonymizer.shortfall != "suppress":
            kept[first:end] = False
    for key, line in zip(keys, made, strict=True):
        columns[key] = pa.array(line, mask=np.isnan(line))
    return kept


def _finite(numbers: Floats) -> Floats:
    """Take what is not finite for null: it has no mean."""
    return np.where(np.isfinite(numbers), numbers, np.nan)
