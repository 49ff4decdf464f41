"""What every source of a stream can do, and which one a stream has.

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

from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.config.sections.brokers import KafkaSettings
from penstock.config.sections.installation import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.pipeline.sources.event_log import TopicSource
from penstock.pipeline.sources.files import FilesSource
from penstock.pipeline.sources.index import FileIndex
from penstock.pipeline.sources.kafka_index import KafkaIndex
from penstock.pipeline.sources.offsets import index_folder


class Source(Protocol):
    """The records of a stream.

    Frames have the columns of `event_log.SCHEMA`, and `columns.PROBLEM` where a source may
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


def open_source(
    stream: Stream, settings: PipelineSettings, kafka: KafkaSettings | None = None
) -> Source:
    """Return where the records of a stream come from."""
    if stream.source is None:
        return TopicSource(EventLog(settings.event_log).topic(stream.topic))
    folder = index_folder(stream.name, stream.source, settings)
    files = stream.source.files
    if files is None:
        # Loaded here: not everyone who runs views has a client of Kafka.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415
        from penstock.pipeline.sources.kafka import KafkaSource  # noqa: PLC0415

        log = KafkaLog(kafka or KafkaSettings())
        return KafkaSource(log, stream.topic, KafkaIndex(folder), settings.batch)
    return FilesSource(FileIndex(folder, Path(files.folder), files.format), folder, stream)
