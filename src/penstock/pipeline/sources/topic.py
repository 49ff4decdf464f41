"""A topic of the embedded event log as the source of a stream."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import UnavailableError, quote
from penstock.eventlog import Topic
from penstock.pipeline.sources.event_log import read_on, read_stretch


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
