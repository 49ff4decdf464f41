"""Finds the source of a stream."""

from __future__ import annotations

from pathlib import Path

from penstock.config.sections.kafka import KafkaSettings
from penstock.config.sections.pipeline import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.pipeline.sources.ends import index_folder
from penstock.pipeline.sources.files import FilesSource
from penstock.pipeline.sources.index import FileIndex
from penstock.pipeline.sources.kafka_index import KafkaIndex
from penstock.pipeline.sources.source import Source
from penstock.pipeline.sources.topic import TopicSource


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
