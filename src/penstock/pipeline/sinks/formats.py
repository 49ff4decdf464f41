"""Finds the sink of a view by the name of its format; sinks of the event log, Kafka and Delta.

Rules that hold here:
- The topic is `<stream>-<view>`, with one JSON object per record, whose key is the number of
  its batch. Where the batch began stands in the commit, so that after a crash the records
  with its number from there on are those that arrived.
- The files of a batch go when its records are in the topic: they are not kept twice.
- At Kafka a batch that counts goes to the topic in one transaction, with a mark that names the
  commit. After a crash the mark tells whether the newest batch arrived; if not, nothing of it
  did. Readers of committed records see each once. A process that was thought dead can add
  nothing: the next one fences it off.
- Avro is written with a schema that the registry has under the topic's subject; it is registered
  before the first record that has it.
- Delta's own record of transactions says which batches the table has, and changes with the
  files of a batch in one step. A table has one schema: a view whose fields change needs a
  folder of its own.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from typing_extensions import override

from penstock.config.brokers import KafkaSettings
from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog import Topic
from penstock.eventlog.files import MAX_LINE
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.registry import HEADER, SchemaRegistry, subject_of, topic_schema
from penstock.eventlog.transactions import TransactionalWriter
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import (
    OPTIONS,
    AvroSink,
    ConsoleSink,
    FileSink,
    ParquetSink,
    Sink,
)
from penstock.pipeline.sources.kafka import connector_options

BLOCK: Final = 1 << 22


class KafkaSink(FileSink):
    """JSON lines, or the records of Avro files, that become records of a topic at Kafka."""

    def __init__(self, log: KafkaLog, topic: str) -> None:
        super().__init__("json")
        self._log = log
        self._topic = topic
        self._writer: TransactionalWriter | None = None

    @cached_property
    def _registry(self) -> SchemaRegistry:
        return SchemaRegistry.of(self._log.settings.registry)

    def stream_options(self) -> dict[str, str]:
        """Return what Spark's own sink needs to write to the topic, which is there then."""
        self._log.make_topic(self._topic)
        return {**connector_options(self._log), "topic": self._topic}

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        held = [path for path in files if path.exists()]
        if not held:
            return
        # Numbers alone begin anew where a view's folder was moved away.
        mark = json.dumps({"sequence": commit.sequence, "at": commit.at}).encode()
        writer, self._writer = self._writer, None
        if writer is None:
            self._log.make_topic(self._topic)
            writer = TransactionalWriter(self._log, self._topic)
        if writer.mark != mark:
            writer.write(self._topic, self._read(held), mark)
        # Kept only after a success: after a failure it would be of no use.
        self._writer = writer
        for path in held:
            path.unlink()

    def _read(self, files: Sequence[Path]) -> Iterator[bytes]:
        """Yield the values of files, as their endings say."""
        for path in files:
            yield from self._encode(path) if path.suffix == ".avro" else read_lines([path])

    def _encode(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            reader: Any = fastavro.reader(file)
            wanted = topic_schema(reader.writer_schema)
            number = self._registry.register(subject_of(self._topic), wanted)
            head = b"\0" + number.to_bytes(HEADER - 1)
            schema = fastavro.parse_schema(wanted)
            for record in reader:
                target = io.BytesIO()
                target.write(head)
                fastavro.schemaless_writer(target, schema, record)
                yield target.getvalue()


def read_lines(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files, a block of them at a time in memory."""
    for path in files:
        with path.open("rb") as file:
            rest = b""
            while block := file.read(BLOCK):
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                yield from lines
            if rest:
                yield rest


APPLICATION: Final = "penstock"
OWN_WRITERS: Final = frozenset({"avro", "delta"})
"""Formats that are not written by Spark: they need a folder that all nodes see."""


class DeltaSink(ParquetSink):
    """Parquet files that are made known to readers of Delta tables."""

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("deltalake") is None:
            raise UnavailableError(
                "Delta tables need the package deltalake, which is missing",
                fix="pip install deltalake, or choose format: parquet",
            )

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        if not files:
            return
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction  # noqa: PLC0415
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        folder = str(files[0].parent)
        there = DeltaTable.is_deltatable(folder)
        if there:
            # Before the files are looked at: once they are in the table, erasure may rename them.
            known = DeltaTable(folder).transaction_version(APPLICATION)
            if known is not None and known >= commit.sequence:
                return
        schema = Schema.from_arrow(_schema_of(files[0]))
        actions = [_describe(path) for path in files]
        mark = CommitProperties(app_transactions=[Transaction(APPLICATION, commit.sequence)])
        if not there:
            create_table_with_add_actions(
                folder, schema, actions, mode="error", commit_properties=mark
            )
            return
        table = DeltaTable(folder)
        if table.schema() != schema:
            raise UsageError(
                f"the fields of the Delta table in {quote(folder)} differ from the view's",
                fix="give the view another name, or move the folder away",
            )
        table.create_write_transaction(actions, "append", schema, commit_properties=mark)


def _schema_of(path: Path) -> pa.Schema:
    """Return the fields of a file; those that Spark wrote do not say that moments are UTC."""
    moment = pa.timestamp("us", tz="UTC")
    return pa.schema(
        (field.name, moment if pa.types.is_timestamp(field.type) else field.type)
        for field in pyarrow.parquet.read_schema(path)
    )


def _describe(path: Path) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415 - loaded where it is used

    state = path.stat()
    rows = pyarrow.parquet.read_metadata(path).num_rows
    return AddAction(
        path=path.name,
        size=state.st_size,
        partition_values={},
        modification_time=state.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


class AvroTopicSink(AvroSink):
    """Avro files that become records of a topic at Kafka."""

    def __init__(self, target: Sink) -> None:
        super().__init__()
        self._target = target

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        self._target.deliver(commit, files, again=again)


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

    def find(self, form: str, encoding: str = "json") -> Sink:
        """Return the sink of a format; of a topic, by what it is encoded as."""
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
                return self._find_topic(encoding)
            case _ if form in OPTIONS:
                return FileSink(form)
        raise UsageError(f"{quote(form)} is not a format of views", fix="see penstock schema view")

    def _find_topic(self, encoding: str) -> Sink:
        if self._kafka is None:
            return TopicSink(self._topic)
        return AvroTopicSink(self._at_kafka) if encoding == "avro" else self._at_kafka

    def stream_options(self) -> dict[str, str]:
        """Return what Spark's own sink of Kafka needs to write to the topic."""
        return self._at_kafka.stream_options()

    @cached_property
    def _at_kafka(self) -> KafkaSink:
        return KafkaSink(KafkaLog(self._kafka or KafkaSettings()), self._topic.folder.name)
