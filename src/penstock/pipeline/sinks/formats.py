"""Finds the sink of a view by the name of its format."""

from __future__ import annotations

from functools import cached_property

from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.pipeline.sinks.avro import AvroSink
from penstock.pipeline.sinks.console import ConsoleSink
from penstock.pipeline.sinks.delta import DeltaSink
from penstock.pipeline.sinks.files import OPTIONS, FileSink, ParquetSink
from penstock.pipeline.sinks.sink import Sink
from penstock.pipeline.sinks.topic import TopicSink


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
