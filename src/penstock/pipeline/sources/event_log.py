"""The embedded event log as a source of Spark: as a stream, and all of it as a batch.

    LogReader (driver): which offsets, in which pieces of files ─▶ tasks: Spark's reader of text
                                                   offset, arrival, value: columns of Spark ◀──┘

Rules that hold here:
- A stretch of offsets always reads the same, so that a batch that is done again after a
  crash has the same records.
- Files are read in pieces, by as many tasks as there are pieces, and no Python runs there. Tasks
  see the log's folder under the same path, or at the same store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UnavailableError, quote
from penstock.eventlog import Topic
from penstock.eventlog.files import MARK, MAX_LINE, Slice
from penstock.pipeline.records import MILLISECONDS, OFFSET, VALUE
from penstock.pipeline.sources.driver import TEXT, Offset, read_batch, read_stream

PIECE: Final = 8 << 20
SCHEMA: Final = f"`{OFFSET}` bigint, `{MILLISECONDS}` bigint, `{VALUE}` binary"
_TAB: Final = "\t"


class Position(NamedTuple):
    """Where a query stands in its source, as Spark's checkpoint says."""

    checkpoint: Path
    offsets: str
    """Spark's words for it; empty at the beginning."""


class LogReader:
    """The lines of a topic's files, at most `rows` at a time, from the first on or from `start`."""

    name = "event log"
    reads_files = True

    def __init__(self, topic: Topic, rows: int | None = None, start: str = "") -> None:
        self._topic = topic
        self._rows = rows
        self._start = start
        self._goal: int | None = None

    def first(self) -> Offset:
        """Return where a query begins that has no checkpoint yet."""
        return {"offset": _offset_of(self._start)}

    def bound(self) -> None:
        """End with what is there now."""
        self._goal = self._topic.next_offset

    def latest(self, start: Offset) -> Offset:
        """Return where the next batch ends."""
        end = self._topic.next_offset if self._goal is None else self._goal
        if self._rows is not None:
            end = min(end, start["offset"] + self._rows)
        return {"offset": max(end, start["offset"])}

    def plan(self, start: Offset, end: Offset) -> list[Slice]:
        """Return the pieces of files that hold the records between two offsets."""
        check_kept(self._topic, start["offset"], end["offset"])
        return self._topic.slices(start["offset"], end["offset"], PIECE)


def split_lines(lines: DataFrame) -> DataFrame:
    """Return the records of lines of the log, without their keys.

    The columns of a line have no tabs and no line ends; see `penstock.eventlog.files`.
    """
    first = F.substring_index(TEXT, _TAB, 1)
    second = F.substring_index(F.substring_index(TEXT, _TAB, 2), _TAB, -1)
    last = F.substring_index(TEXT, _TAB, -1)
    marked = F.unbase64(F.substring(last, 1 + len(MARK), MAX_LINE))
    value = F.when(F.startswith(last, F.lit(MARK.decode())), marked)
    return lines.select(
        first.cast("bigint").alias(OFFSET),
        second.cast("bigint").alias(MILLISECONDS),
        value.otherwise(last.cast("binary")).alias(VALUE),
    )


class TopicSource:
    """The records of a topic; the log has offsets of its own."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def begin(self) -> None:
        """Nothing is to be done before the first reader."""

    def identify(self) -> str:
        """Return what names this source for good."""
        return f"eventlog:{self._topic.folder.name}"

    def read_stream(self, spark: SparkSession, rows: int | None, start: str = "") -> DataFrame:
        """Return the records as a stream."""
        return split_lines(read_stream(spark, LogReader(self._topic, rows, start)))

    def read(self, spark: SparkSession, start: str = "", end: str = "") -> DataFrame:  # noqa: ARG002
        """Return all records that there are now."""
        return split_lines(read_batch(spark, LogReader(self._topic)))

    def hand_over(self, position: Position, checkpoint: Path) -> str:  # noqa: ARG002
        """Return the place: another query can begin there."""
        return position.offsets

    def check(self, position: Position) -> None:
        """Raise if the log has forgotten records behind a place."""
        check_kept(self._topic, _offset_of(position.offsets), self._topic.next_offset)

    def check_whole(self) -> None:
        """Raise if the log has forgotten some of its first records."""
        check_kept(self._topic, 0, self._topic.next_offset)

    def count_behind(self, position: Position) -> int:
        """Return how many records there are behind a place."""
        return self._topic.count_from(_offset_of(position.offsets))

    def locate(self, offset: int) -> dict[str, Any]:
        """Return where a record stands."""
        return {"offset": offset}


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
    return int(json.loads(place)["offset"]) if place else 0
