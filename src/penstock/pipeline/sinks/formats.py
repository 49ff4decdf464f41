"""Finds the sink of a view by the name of its format; the sink of the embedded event log.

Rules that hold here:
- The topic is `<stream>-<view>`, with one JSON object per record, whose key is the number of
  its batch. Where the batch began stands in the commit, so that after a crash the records
  with its number from there on are those that arrived.
- The files of a batch go when its records are in the topic: they are not kept twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from typing_extensions import override

from penstock.config.sections.brokers import KafkaSettings
from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.eventlog.files import MAX_LINE
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.delta import DeltaSink
from penstock.pipeline.sinks.files import (
    OPTIONS,
    AvroSink,
    ConsoleSink,
    FileSink,
    ParquetSink,
    Sink,
)

BATCH: Final = 10_000


class TopicSink(FileSink):
    """JSON lines that become records of a topic."""

    def __init__(self, topic: Topic) -> None:
        super().__init__("json")
        self._topic = topic

    @override
    def begin(self) -> int:
        return self._topic.next_offset

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        held = [path for path in files if path.exists()]
        key = b"%d" % commit.sequence
        arrived = 0
        if again and held:
            there = self._topic.read(commit.begin, erased=True)
            arrived = sum(record.key == key for record in there)
        values = itertools.islice(_read(held), arrived, None)
        while chunk := list(itertools.islice(values, BATCH)):
            self._topic.append(chunk, [key] * len(chunk))
        for path in held:
            path.unlink()


def _read(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as lines:
            while line := lines.readline(MAX_LINE):
                yield line.rstrip(b"\n")


class Sinks:
    """The ways that the records of one view may leave: now, and before it was changed."""

    def __init__(self, topic: Topic, kafka: KafkaSettings | None = None) -> None:
        """Take the view's topic: in the embedded log, or of that name at `kafka`."""
        self._topic = topic
        self._kafka = kafka

    def find(self, form: str) -> Sink:
        """Return the sink of a format."""
        match form:
            case "parquet":
                return ParquetSink()
            case "avro":
                return AvroSink()
            case "delta":
                return DeltaSink()
            case "console":
                return ConsoleSink(self._topic.folder.name)
            case "topic":
                return TopicSink(self._topic) if self._kafka is None else self._at_kafka
            case _ if form in OPTIONS:
                return FileSink(form)
        raise UsageError(f"{quote(form)} is no format of views", fix="see penstock schema view")

    @cached_property
    def _at_kafka(self) -> Sink:
        # Loaded here: not everyone who runs views has a client of Kafka.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415
        from penstock.pipeline.sinks.kafka import KafkaSink  # noqa: PLC0415

        return KafkaSink(KafkaLog(self._kafka or KafkaSettings()), self._topic.folder.name)
