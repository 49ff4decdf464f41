"""A topic of the embedded event log as the source of a stream."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.eventlog import Topic
from penstock.pipeline.log_source import read_on, read_stretch


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

    def read_stretch(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from `start` to before `end`."""
        return read_stretch(spark, self._topic.folder, start, end)
