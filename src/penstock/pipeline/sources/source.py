"""What every source of a stream can do, and which one a stream has.

    event log ─ data source of ours ─┐
    Kafka ───── Spark's connector ───┼─▶ offset, arrival, value ─▶ records.parser
    files ───── Spark's file source ─┘

Rules that hold here:
- Spark reads, and Spark's checkpoint says what was read. Nothing is kept here.
- Each record has one offset for good, a number that no other record of the stream has. It comes
  from where the store itself says that the record stands; `locate` leads back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.config.brokers import KafkaSettings
from penstock.config.installation import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.pipeline.sources.event_log import Position, TopicSource
from penstock.pipeline.sources.files import FilesSource


class Source(Protocol):
    """The records of a stream.

    Frames have the columns of `event_log.SCHEMA`, and `columns.PROBLEM` where a source may
    find that a record is none.
    """

    def begin(self) -> None:
        """Prepare the store for its first reader."""

    def identify(self) -> str:
        """Return what names this source for good; raises where it cannot be reached."""

    def read_stream(self, spark: SparkSession, rows: int | None, start: str = "") -> DataFrame:
        """Return the records as a stream, about `rows` at a time; with 0, no new ones come.

        None: each as it comes, where the store can do that. A new query begins at `start`, in
        Spark's words for a place, or at the beginning.
        """

    def read(self, spark: SparkSession, start: str = "", end: str = "") -> DataFrame:
        """Return all records that there are now; of Kafka also those between two places."""

    def hand_over(self, position: Position, checkpoint: Path) -> str:
        """Prepare another checkpoint to go on at a place; return the `start` for it."""

    def check(self, position: Position) -> None:
        """Raise if records behind a place are not there any more, or not as they were found."""

    def check_whole(self) -> None:
        """Raise if some of the first records are not there any more, as far as the store tells."""

    def count_behind(self, position: Position) -> int:
        """Return how much there is behind a place: records, or files where these are read."""

    def locate(self, offset: int) -> dict[str, Any]:
        """Return where a record stands, in the words of the store."""


def open_source(
    stream: Stream, settings: PipelineSettings, kafka: KafkaSettings | None = None
) -> Source:
    """Return where the records of a stream come from."""
    if stream.source is None:
        return TopicSource(EventLog(settings.event_log).topic(stream.topic))
    files = stream.source.files
    if files is None:
        # Loaded here: not everyone who runs views has a client of Kafka.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415
        from penstock.pipeline.sources.kafka import KafkaSource  # noqa: PLC0415

        return KafkaSource(KafkaLog(kafka or KafkaSettings()), stream.topic)
    return FilesSource(Path(files.folder), files.format, stream.fields)
