"""The embedded event log as a source of Spark: as a stream, and all of it as a batch.

Rules that hold here:
- A stretch of offsets always reads the same, so that a batch that is done again after a
  crash has the same records.
- Files are read in pieces, by as many tasks as there are pieces, as Arrow batches: no
  Python runs for a single record. Tasks see the log's folder under the same path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
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


class Position(NamedTuple):
    """Where a query stands in its source, as Spark's checkpoint says."""

    checkpoint: Path
    offsets: str
    """Spark's words for it; empty at the beginning."""


class Piece(InputPartition):
    """A piece of a file, for one task."""

    def __init__(self, piece: Slice) -> None:
        super().__init__(piece)
        self.piece = piece


class LogSource(DataSource):
    """`spark.readStream.format("penstock_event_log")`; options: folder, rows, start."""

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
    """Reads all records that there are."""

    def __init__(self, options: Any) -> None:
        self._folder = options["folder"]

    @override
    def partitions(self) -> Sequence[InputPartition]:
        topic = Topic(Path(self._folder))
        return _plan(topic, topic.first_offset, topic.next_offset)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, at most `rows` records at a time, from the first record on."""

    def __init__(self, options: Any) -> None:
        self._folder = options["folder"]
        self._rows = int(options["rows"])
        self._start = str(options.get("start", ""))
        self._goal: int | None = None

    @property
    def _topic(self) -> Topic:
        return Topic(Path(self._folder))

    @override
    def initialOffset(self) -> dict[str, int]:
        if self._start:
            return {"offset": _offset_of(self._start)}
        return {"offset": self._topic.first_offset}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(max(1, self._rows))

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._topic.next_offset

    @override
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if not self._rows:
            return start
        end = self._topic.next_offset if self._goal is None else self._goal
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, start["offset"] + self._rows)
        return {"offset": max(end, start["offset"])}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        check_kept(self._topic, start["offset"], end["offset"])
        return _plan(self._topic, start["offset"], end["offset"])

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


def _plan(topic: Topic, start: int, end: int) -> list[InputPartition]:
    return [Piece(piece) for piece in topic.slices(start, end, PIECE)]


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


class TopicSource:
    """The records of a topic; the log has offsets of its own."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def begin(self) -> None:
        """Nothing is to be done before the first reader."""

    def identify(self) -> str:
        """Return what names this source for good."""
        return f"eventlog:{self._topic.folder.name}"

    def read_stream(self, spark: SparkSession, rows: int, start: str = "") -> DataFrame:
        """Return the records as a stream."""
        spark.dataSource.register(LogSource)
        reader = spark.readStream.format(FORMAT).option("folder", str(self._topic.folder))
        return reader.option("rows", rows).option("start", start).load()

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all records that there are now."""
        spark.dataSource.register(LogSource)
        return spark.read.format(FORMAT).option("folder", str(self._topic.folder)).load()

    def hand_over(self, position: Position, checkpoint: Path) -> str:  # noqa: ARG002
        """Return the place: another query can begin there."""
        return position.offsets

    def check(self, position: Position) -> None:
        """Raise if the log has forgotten records behind a place."""
        if position.offsets:
            check_kept(self._topic, _offset_of(position.offsets), self._topic.next_offset)

    def count_behind(self, position: Position) -> int:
        """Return how many records there are behind a place."""
        return count_behind(self._topic, position.offsets)

    def locate(self, offset: int) -> dict[str, Any]:
        """Return where a record stands."""
        return {"offset": offset}


def count_behind(topic: Topic, offsets: str) -> int:
    """Return how many records of a topic there are behind a place, or in all."""
    first = _offset_of(offsets) if offsets else topic.first_offset
    return max(0, topic.next_offset - first)


def check_kept(topic: Topic, start: int, end: int) -> None:
    """Raise if the log has forgotten records from `start` to before `end`."""
    kept = min(topic.first_offset, end)
    if start < kept:
        raise UnavailableError(
            f"the event log has forgotten the records {start} to {kept - 1} "
            f"of {quote(topic.folder.name)}",
            fix="restore the topic's files from a backup",
        )


def _offset_of(place: str) -> int:
    return int(json.loads(place)["offset"])
