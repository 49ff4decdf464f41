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
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.pipeline.anonymizers.stateful import read_table, write_table
from penstock.pipeline.anonymizers.windows import EARLIEST, LATEST
from penstock.pipeline.records.columns import NO_TIME, TIME
from penstock.pipeline.session import freeze_loaded

REASON: Final = "penstock:rejected"
"""Why a row was refused, on the way to the step and behind it."""
KEY: Final = "shard"
ROWS: Final = "rows"
PACKED: Final = f"{KEY} int, {ROWS} binary"
SIGNALS: Final = (
    "order bigint, opted_out array<bigint>, erased array<bigint>, clock bigint, flush boolean"
)
"""What the shards of a running view are told beside its records; null: nothing new.

`opted_out`: all who do, by the numbers that stand for them in SUBJECT; counts before the records of
the micro-batch. `erased`: people who are forgotten among what is held then, and no longer. `clock`:
all that arrived before it was read; `flush`: all leave; both behind them. Of several rows, the one
with the greatest `order` counts.
"""
NEWEST: Final = "newest"
SIGNAL: Final = pa.schema(
    [
        ("order", pa.int64()),
        ("opted_out", pa.list_(pa.int64())),
        ("erased", pa.list_(pa.int64())),
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


def pack(frame: DataFrame, keys: Sequence[int], who: str, *, timed: bool) -> DataFrame:
    """Return rows as values of Arrow bytes, those of a shard together.

    `who`: the column by whose number a row belongs to a shard; none of them is the first one's.
    `timed`: all shards are told the newest time of the rows.
    """
    names, told = frame.columns, timed and len(keys) > 1

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return pack_rows((it.rename_columns(names) for it in batches), keys, who, told=told)

    # Spark takes a dot in a name for a way into a field here, so that names travel beside.
    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(run, PACKED)


def pack_signals(signals: DataFrame, keys: Sequence[int]) -> DataFrame:
    """Return signals as values, one for every shard."""
    every = F.explode(F.array(*map(F.lit, keys))).alias(KEY)
    spread = signals.select("order", "opted_out", "erased", "clock", "flush", every)

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
    batches: Iterable[pa.RecordBatch], keys: Sequence[int], who: str, *, told: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task as values; `told`: all shards learn their newest time."""
    waiting: dict[int, list[pa.RecordBatch]] = {}
    counts: dict[int, int] = {}
    newest = NO_TIME
    for batch in batches:
        if told:
            newest = max(newest, _find_newest(batch))
        for shard, rows in _divide(batch, len(keys), who):
            waiting.setdefault(shard, []).append(rows)
            counts[shard] = counts.get(shard, 0) + rows.num_rows
            if counts[shard] >= MOST_ROWS:
                yield from _emit(keys[shard], waiting.pop(shard))
                del counts[shard]
    for shard, held in waiting.items():
        yield from _emit(keys[shard], held)
    if newest > NO_TIME:
        for key in keys:
            yield _value(key, write_signal(newest=newest))


def _divide(batch: pa.RecordBatch, shards: int, who: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each shard that has any."""
    if shards == 1:
        yield 0, batch
        return
    numbers = batch.column(who).fill_null(0).to_numpy() % shards
    for shard in np.unique(numbers).tolist():
        yield shard, batch.take(pa.array(np.flatnonzero(numbers == shard)))


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
