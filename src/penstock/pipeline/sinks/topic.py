"""The view's topic in the embedded event log: `<stream>-<view>`, one JSON object per record.

Rules that hold here:
- A record's key is the number of its batch. Where the batch began stands in the commit, so
  that after a crash the records with its number from there on are those that arrived.
- The files of a batch go when its records are in the topic: they are not kept twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from penstock.eventlog import Topic
from penstock.eventlog.lines import MAX_LINE
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import FileSink

CHUNK: Final = 10_000


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
            arrived = sum(record.key == key for record in self._topic.read(commit.begin))
        values = itertools.islice(_read(held), arrived, None)
        while chunk := list(itertools.islice(values, CHUNK)):
            self._topic.append(chunk, [key] * len(chunk))
        for path in held:
            path.unlink()


def _read(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as lines:
            while line := lines.readline(MAX_LINE):
                yield line.rstrip(b"\n")
