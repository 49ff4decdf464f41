"""Anonymizers of windows, over many windows at once: aggregation, shuffling, microaggregation.

Rules that hold here:
- Rows come ordered by window; a window is a run of rows with one start.
- Null is no value: it counts in no aggregate and stays null in microaggregation.
- A window in which an anonymizer cannot hide its values never passes them as they are.
- In one of several shards, aggregates are left open: `partial_aggregates` fills them in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.anonymizers.stateful import (
    Aggregation,
    Microaggregation,
    MultivariateMicroaggregation,
    Shuffling,
    StatefulAnonymizer,
)
from penstock.masks.anonymity.microaggregation import TooFew, aggregate_tuples, aggregate_values
from penstock.masks.fields import Field, Schema
from penstock.pipeline.anonymizers.partial_aggregates import COMBINED, finish, make_part
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.records.columns import ARROW_TYPES, OFFSET, WINDOW, Booleans, Integers

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
            raise TypeError(f"{anonymizer.name} is no anonymizer of windows")
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
