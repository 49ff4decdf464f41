"""Finds the source of a stream."""

from __future__ import annotations

from pathlib import Path

from penstock.config.sections.pipeline import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.pipeline.sources.ends import index_folder
from penstock.pipeline.sources.files import FilesSource
from penstock.pipeline.sources.index import FileIndex
from penstock.pipeline.sources.source import Source
from penstock.pipeline.sources.topic import TopicSource


def open_source(stream: Stream, settings: PipelineSettings) -> Source:
    """Return where the records of a stream come from."""
    if stream.source is None:
        return TopicSource(EventLog(settings.event_log).topic(stream.topic))
    files = stream.source.files
    folder = index_folder(stream.name, files, settings)
    return FilesSource(FileIndex(folder, Path(files.folder), files.format), folder, stream)
