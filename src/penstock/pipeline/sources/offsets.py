"""How far the sources of streams reach, and where the pipeline keeps what it knows of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock.config.sections.installation import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.model.kinds.streams import StreamSource
from penstock.pipeline.sources.kafka_index import KafkaIndex


def index_folder(stream: str, source: StreamSource, settings: PipelineSettings) -> Path:
    """Return where the index of a source is kept: another folder of files, another index."""
    files = source.files
    if files is None:
        return settings.folder / ".sources" / stream / "kafka"
    digest = hashlib.sha256(f"{files.format}:{files.folder}".encode()).hexdigest()[:12]
    return settings.folder / ".sources" / stream / digest


def checkpoint_folder(stream: Stream, settings: PipelineSettings) -> Path:
    """Return where Spark notes what it offered; places in one source mean nothing in another."""
    if stream.source is None:
        return settings.folder / ".checkpoints" / stream.name
    return index_folder(stream.name, stream.source, settings) / "checkpoint"


def next_offset_of(stream: Stream, settings: PipelineSettings) -> int:
    """Return the next offset of a stream, as far as its source was looked at already."""
    if stream.source is None:
        return EventLog(settings.event_log).topic(stream.topic).next_offset
    files = stream.source.files
    folder = index_folder(stream.name, stream.source, settings)
    if files is None:
        return KafkaIndex(folder).next_offset
    from penstock.pipeline.sources.index import FileIndex  # noqa: PLC0415 - loads pyarrow

    return FileIndex(folder, Path(files.folder), files.format).next_offset
