"""What every source of a stream can do.

Rules that hold here:
- Each record has one offset for good. Offsets begin at zero and grow; few hold no record. A
  view goes on at an offset.
- A stretch of offsets always reads the same. Where a source cannot keep that, since a file
  was changed or is gone, it says so and gives nothing.

A store that knows records by other places keeps an index on the disk, written before the
first of its offsets is used, that leads from a running offset to a place: a file and a row
(`index`); a partition and an offset in it, for a store with partitions. There, `place` is
where a batch that Spark brought with the store's own places gets its running offsets.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession


class Source(Protocol):
    """The records of a stream.

    Frames have the columns of `log_source.SCHEMA`, and `parsing.PROBLEM` where a source may
    find that a record is none.
    """

    def take_in(self) -> int:
        """Look for new records, and return the offset that the next one will get."""

    def read_on(self, spark: SparkSession, start: int, rows: int) -> DataFrame | None:
        """Return the records from `start` on as a stream, about `rows` at a time.

        None where stretches are all there is: new records are looked for with `take_in`.
        """

    def place(self, batch: DataFrame) -> DataFrame:
        """Give the records of a batch of that stream their offsets, if they lack them."""

    def check(self, start: int, end: int) -> None:
        """Raise if the records from `start` to before `end` cannot be read as they were."""

    def read_stretch(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from `start` to before `end`."""
