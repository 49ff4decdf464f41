"""Shards of a stateful view: whole persons together, rows packed for the way through the shuffle.

    rows ─▶ pack: one value of Arrow bytes for each shard ─▶ shuffle ─▶ step ─▶ values ─▶ unpack
    signals ─▶ one value for every shard ───────────────────▲            └ parts ─▶ combine ─▲

Rules that hold here:
- A shard has all records of its persons, so that what holds in each shard holds in the union.
- Rows cross the shuffle and the boundary to Python as Arrow, many in one value: no Python object
  is made for a row, and Spark counts and moves values, not rows.
- Each shard has a partition of its own, where there are as many: keys are chosen by the hash that
  Spark places them by. The key of a shard does not depend on how many there are.
- Of windows, every shard is told the newest time of all rows of the micro-batch: a window leaves
  all shards in the same one, and there its parts are combined, without further state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.pipeline.anonymizers.stateful import read_table, write_table
from penstock.pipeline.anonymizers.windows import EARLIEST, LATEST
from penstock.pipeline.records.columns import NO_TIME, TIME
from penstock.pipeline.session import freeze_loaded

SHARD: Final = "penstock:shard"
REASON: Final = "penstock:rejected"
"""Why a row was refused, on the way to the step and behind it."""
KEY: Final = "shard"
ROWS: Final = "rows"
PACKED: Final = f"{KEY} int, {ROWS} binary"
SIGNALS: Final = "order bigint, opted_out array<bigint>, clock bigint, flush boolean"
"""What the shards of a running view are told beside its records; null: nothing new.

`opted_out`: all who do, by the numbers that stand for them in SUBJECT; counts before the records of
the micro-batch. `clock`: all that arrived before it was read; `flush`: all leave; both behind them.
Of several rows, the one with the greatest `order` counts.
"""
NEWEST: Final = "newest"
SIGNAL: Final = pa.schema(
    [
        ("order", pa.int64()),
        ("opted_out", pa.list_(pa.int64())),
        ("clock", pa.int64()),
        ("flush", pa.bool_()),
        (NEWEST, pa.int64()),
    ],
    metadata={b"penstock": b"signal"},
)
# Few enough for one value of a column, whatever the rows hold; enough to make values rare.
MOST_ROWS: Final = 1 << 16
_TRIES: Final = 64

Combine = Callable[[Sequence[Any]], Iterable[Any]]
"""Makes the rows of a shard of all that was sent to it in a micro-batch."""


@lru_cache(maxsize=64)
def choose_keys(spark: SparkSession, shards: int, partitions: int) -> tuple[int, ...]:
    """Return a key for each shard, such that Spark spreads them evenly over the partitions."""
    candidates = spark.range(_TRIES * max(shards, partitions)).select(F.col("id").cast("int"))
    placed = candidates.select("id", F.pmod(F.hash("id"), F.lit(partitions)).alias("partition"))
    free: dict[int, list[int]] = {}
    for row in placed.collect():
        free.setdefault(row["partition"], []).append(row["id"])
    return tuple(free[shard % partitions][shard // partitions] for shard in range(shards))


def place(number: Column, keys: Sequence[int]) -> Column:
    """Return the key of the shard that a number belongs to; none of them is the first one's."""
    shard = F.coalesce(F.pmod(number, F.lit(len(keys))), F.lit(0))
    return F.element_at(F.array(*map(F.lit, keys)), shard.cast("int") + 1)


def pack(frame: DataFrame, keys: Sequence[int], *, timed: bool) -> DataFrame:
    """Return rows as values of Arrow bytes; the last column of the frame names their shard.

    `timed`: all shards are told the newest time of the rows.
    """
    *names, _ = frame.columns
    told = tuple(keys) if timed and len(keys) > 1 else ()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return pack_rows(batches, names, told)

    # Spark takes a dot in a name for a way into a field here, so that names travel beside.
    plain = frame.toDF(*(f"c{number}" for number in range(len(names) + 1)))
    return plain.mapInArrow(run, PACKED)


def pack_signals(signals: DataFrame, keys: Sequence[int]) -> DataFrame:
    """Return signals as values, one for every shard."""
    every = F.explode(F.array(*map(F.lit, keys))).alias(KEY)
    spread = signals.select("order", "opted_out", "clock", "flush", every)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in pa.Table.from_batches([batch]).to_pylist():
                yield _value(row.pop(KEY), write_signal(**row))

    return spread.mapInArrow(run, PACKED)


def write_signal(**told: Any) -> bytes:
    """Write what a shard is told."""
    return write_table(pa.Table.from_pylist([told], schema=SIGNAL))


def unpack(packed: DataFrame, schema: types.StructType) -> DataFrame:
    """Return the rows of packed values."""
    plain = [f"c{number}" for number in range(len(schema))]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        for batch in batches:
            for value in batch.column(0):
                yield from read_table(value.as_buffer()).rename_columns(plain).to_batches()

    return packed.select(ROWS).mapInArrow(run, _plain(schema)).toDF(*schema.names)


def unpack_combined(packed: DataFrame, schema: types.StructType, combine: Combine) -> DataFrame:
    """Return the rows that are made of all that shards send to each other in a micro-batch."""
    plain = [f"c{number}" for number in range(len(schema))]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        sent: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for key, value in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                sent.setdefault(key, []).append(read_table(value.as_buffer()))
        for _, tables in sorted(sent.items()):
            for made in combine(tables):
                yield from made.rename_columns(plain).to_batches()

    together = packed.repartition(F.col(KEY)).select(KEY, ROWS)
    return together.mapInArrow(run, _plain(schema)).toDF(*schema.names)


def _plain(schema: types.StructType) -> types.StructType:
    return types.StructType(
        [types.StructField(f"c{number}", it.dataType) for number, it in enumerate(schema)]
    )


def split_up(table: pa.Table) -> Iterator[bytes]:
    """Yield the rows of a table as values."""
    for first in range(0, table.num_rows, MOST_ROWS):
        yield write_table(table.slice(first, MOST_ROWS))


def pack_rows(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], told: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task as values; `told` are the shards that learn the newest time."""
    waiting: dict[int, list[pa.RecordBatch]] = {}
    counts: dict[int, int] = {}
    newest = NO_TIME
    for batch in batches:
        shards = np.asarray(batch.column(batch.num_columns - 1))
        order = np.argsort(shards, kind="stable")
        keys, firsts = np.unique(shards[order], return_index=True)
        rows = batch.select(range(batch.num_columns - 1)).rename_columns(names)
        if told:
            newest = max(newest, _find_newest(rows))
        sorted_rows = rows.take(pa.array(order)) if keys.size > 1 else rows
        ends = [*firsts[1:].tolist(), batch.num_rows]
        for key, first, end in zip(keys.tolist(), firsts.tolist(), ends, strict=True):
            waiting.setdefault(key, []).append(sorted_rows.slice(first, end - first))
            counts[key] = counts.get(key, 0) + end - first
            if counts[key] >= MOST_ROWS:
                yield from _emit(key, waiting.pop(key))
                del counts[key]
    for key, held in waiting.items():
        yield from _emit(key, held)
    if newest > NO_TIME:
        for key in told:
            yield _value(key, write_signal(newest=newest))


def _find_newest(rows: pa.RecordBatch) -> int:
    """Return the newest time of rows that were not refused."""
    fine = np.asarray(rows.column(REASON).is_null()) & np.asarray(rows.column(TIME).is_valid())
    times = rows.column(TIME).fill_null(0).to_numpy()[fine]
    times = times[(times >= EARLIEST) & (times <= LATEST)]
    return int(times.max()) if times.size else NO_TIME


def _emit(key: int, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for value in split_up(pa.Table.from_batches(batches).combine_chunks()):
        yield _value(key, value)


def _value(key: int, value: bytes) -> pa.RecordBatch:
    return pa.record_batch({KEY: pa.array([key], pa.int32()), ROWS: pa.array([value])})
