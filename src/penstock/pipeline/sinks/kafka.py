"""The view's topic at Kafka: one JSON object per record, each there once.

Rules that hold here:
- A batch that counts goes to the topic in one transaction, with a mark that names the commit.
  After a crash the mark tells whether the newest batch arrived; if not, nothing of it did.
  Readers of committed records see each once; a batch is there as a whole, or not at all.
- A process that was thought dead can add nothing: the next one fences it off.
- The files of a batch go when its records are in the topic: they are not kept twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.transactions import TransactionalWriter
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import FileSink

BLOCK: Final = 1 << 22


class KafkaSink(FileSink):
    """JSON lines that become records of a topic at Kafka."""

    def __init__(self, log: KafkaLog, topic: str) -> None:
        super().__init__("json")
        self._log = log
        self._topic = topic
        self._writer: TransactionalWriter | None = None

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
            writer.write(self._topic, read_lines(held), mark)
        # Kept only after a success: after a failure it would be of no use.
        self._writer = writer
        for path in held:
            path.unlink()


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
