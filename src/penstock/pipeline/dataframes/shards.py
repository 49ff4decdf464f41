"""Shards of a stateful view: whole persons together, rows packed for the way through the shuffle.

    rows ─▶ pack: one value of Arrow bytes for each shard ─▶ shuffle ─▶ step ─▶ values ─▶ unpack

Rules that hold here:
- A shard has all records of its persons, so that what holds in each shard holds in the union.
- Rows cross the shuffle and the boundary to Python as Arrow, many in one value: no Python object
  is made for a row, and Spark counts and moves values, not rows.
- Each shard has a partition of its own, where there are as many: keys are chosen by the hash that
  Spark places them by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.pipeline.anonymizers.stateful import read_table, write_table
from penstock.pipeline.session import freeze_loaded

SHARD: Final = "penstock:shard"
KEY: Final = "shard"
ROWS: Final = "rows"
PACKED: Final = f"{KEY} int, {ROWS} binary"
# Few enough for one value of a column, whatever the rows hold; enough to make values rare.
MOST_ROWS: Final = 1 << 16
_TRIES: Final = 64


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


def pack(frame: DataFrame) -> DataFrame:
    """Return rows as values of Arrow bytes; the last column of the frame names their shard."""
    *names, _ = frame.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return _pack_task(batches, names)

    # Spark takes a dot in a name for a way into a field here, so that names travel beside.
    plain = frame.toDF(*(f"c{number}" for number in range(len(names) + 1)))
    return plain.mapInArrow(run, PACKED)


def unpack(packed: DataFrame, schema: types.StructType) -> DataFrame:
    """Return the rows of packed values."""
    plain = [f"c{number}" for number in range(len(schema))]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        for batch in batches:
            for value in batch.column(0):
                yield from read_table(value.as_buffer()).rename_columns(plain).to_batches()

    fields = [
        types.StructField(name, field.dataType) for name, field in zip(plain, schema, strict=True)
    ]
    return packed.select(ROWS).mapInArrow(run, types.StructType(fields)).toDF(*schema.names)


def split_up(table: pa.Table) -> Iterator[bytes]:
    """Yield the rows of a table as values."""
    for first in range(0, table.num_rows, MOST_ROWS):
        yield write_table(table.slice(first, MOST_ROWS))


def _pack_task(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    waiting: dict[int, list[pa.RecordBatch]] = {}
    counts: dict[int, int] = {}
    for batch in batches:
        shards = np.asarray(batch.column(batch.num_columns - 1))
        order = np.argsort(shards, kind="stable")
        keys, firsts = np.unique(shards[order], return_index=True)
        rows = batch.select(range(batch.num_columns - 1)).rename_columns(names)
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


def _emit(key: int, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for value in split_up(pa.Table.from_batches(batches).combine_chunks()):
        yield pa.record_batch({KEY: pa.array([key], pa.int32()), ROWS: pa.array([value])})
