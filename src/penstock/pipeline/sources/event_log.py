"""The embedded event log as a source of Spark: streaming, and any stretch of it as a batch.

Rules that hold here:
- A stretch of offsets always reads the same, so that a batch that is done again after a
  crash has the same records.
- Files are read in pieces, by as many tasks as there are pieces, as Arrow batches: no
  Python runs for a single record. Tasks see the log's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from typing_extensions import override

from penstock.errors import UnavailableError, quote
from penstock.eventlog import Topic
from penstock.eventlog.files import MARK, Slice, decode
from penstock.pipeline.records import MILLISECONDS, OFFSET, VALUE

FORMAT: Final = "penstock_event_log"
PIECE: Final = 8 << 20

SCHEMA: Final = StructType(
    [
        StructField(OFFSET, LongType()),
        StructField(MILLISECONDS, LongType()),
        StructField(VALUE, BinaryType()),
    ]
)
_COLUMNS: Final = {
    OFFSET: pa.int64(),
    MILLISECONDS: pa.int64(),
    "key": pa.binary(),
    VALUE: pa.binary(),
}


class Piece(InputPartition):
    """A piece of a file, for one task."""

    def __init__(self, piece: Slice) -> None:
        super().__init__(piece)
        self.piece = piece


class LogSource(DataSource):
    """`spark.read.format("penstock_event_log")`; options: folder, start, end, rows."""

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> StructType:
        return SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self.options)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(self.options)


class LogReader(DataSourceReader):
    """Reads the records from `start` to before `end`."""

    def __init__(self, options: Any) -> None:
        self._folder = options["folder"]
        self._start, self._end = int(options["start"]), int(options["end"])

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return _plan(self._folder, self._start, self._end)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class LogStreamReader(DataSourceStreamReader):
    """Reads on and on, at most `rows` records at a time, from `start` on."""

    def __init__(self, options: Any) -> None:
        self._folder = options["folder"]
        self._start = int(options.get("start", 0))
        self._rows = int(options["rows"])

    @override
    def initialOffset(self) -> dict[str, int]:
        return {"offset": self._start}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows)

    @override
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = Topic(Path(self._folder)).next_offset
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, start["offset"] + self._rows)
        return {"offset": max(end, start["offset"])}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _plan(self._folder, start["offset"], end["offset"])

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


def _plan(folder: str, start: int, end: int) -> list[InputPartition]:
    return [Piece(piece) for piece in Topic(Path(folder)).slices(start, end, PIECE)]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Piece):
        raise TypeError(f"{type(partition).__name__} is no piece of the log")
    yield from parse(partition.piece.read())


def parse(lines: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the records of lines of the log, without their keys."""
    table = pyarrow.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pyarrow.csv.ReadOptions(column_names=list(_COLUMNS), use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=_COLUMNS,
            include_columns=[OFFSET, MILLISECONDS, VALUE],
            strings_can_be_null=False,
        ),
    )
    for batch in table.to_batches():
        yield _decode(batch)


def _decode(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode the values that could not stand in a line as they are."""
    values = batch[VALUE]
    marked = pc.starts_with(values, MARK)
    if not pc.any(marked).as_py():
        return batch
    plain = pa.array([decode(value) for value in values.to_pylist()], pa.binary())
    return pa.record_batch([batch[OFFSET], batch[MILLISECONDS], plain], names=batch.schema.names)


def read_stretch(spark: SparkSession, folder: Path, start: int, end: int) -> DataFrame:
    """Return the records of a topic from `start` to before `end`."""
    spark.dataSource.register(LogSource)
    reader = spark.read.format(FORMAT).option("folder", str(folder))
    return reader.option("start", start).option("end", end).load()


def read_on(spark: SparkSession, folder: Path, start: int, rows: int) -> DataFrame:
    """Return the records of a topic from `start` on, as a stream."""
    spark.dataSource.register(LogSource)
    reader = spark.readStream.format(FORMAT).option("folder", str(folder))
    return reader.option("start", start).option("rows", rows).load()


class TopicSource:
    """The records of a topic; the log has offsets of its own."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def take_in(self) -> int:
        """Return the offset that the next record will get."""
        return self._topic.next_offset

    def read_on(self, spark: SparkSession, start: int, rows: int) -> DataFrame:
        """Return the records from `start` on as a stream."""
        return read_on(spark, self._topic.folder, start, rows)

    def place(self, batch: DataFrame) -> DataFrame:
        """Return the batch: it has its offsets."""
        return batch

    def check(self, start: int, end: int) -> None:
        """Raise if the log has forgotten records of the stretch."""
        first = self._topic.first_offset
        if start < min(first, end):
            raise UnavailableError(
                f"the event log has forgotten the records {start} to {min(first, end) - 1} "
                f"of {quote(self._topic.folder.name)}",
                fix="restore the topic's files from a backup",
            )

    def read_stretch(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from `start` to before `end`."""
        return read_stretch(spark, self._topic.folder, start, end)
