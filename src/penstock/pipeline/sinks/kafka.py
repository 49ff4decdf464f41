"""The view's topic at Kafka: one JSON object or Avro datum per record, each there once.

Rules that hold here:
- A batch that counts goes to the topic in one transaction, with a mark that names the commit.
  After a crash the mark tells whether the newest batch arrived; if not, nothing of it did.
  Readers of committed records see each once; a batch is there as a whole, or not at all.
- A process that was thought dead can add nothing: the next one fences it off.
- Avro is written with a schema that the registry has under the topic's subject; it is registered
  before the first record that has it.
- The files of a batch go when its records are in the topic: they are not kept twice.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import fastavro
from typing_extensions import override

from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.registry import HEADER, SchemaRegistry, subject_of, topic_schema
from penstock.eventlog.transactions import TransactionalWriter
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import FileSink
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
