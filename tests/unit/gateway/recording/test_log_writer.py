from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.eventlog import EventLog, Topic
from penstock.gateway.recording.log_writer import Batch, Entry, LogWriter
from penstock.gateway.recording.topic_mapping import Target, TopicMappings
from penstock.model.document import Key
from penstock.model.kinds import Stream

FIELDS = [{"name": "x", "type": "int"}]


class Log:
    """An event log of which one topic cannot be opened for a while."""

    def __init__(self, folder: Path) -> None:
        self.files = EventLog(folder)
        self.closed = ""

    def open(self, target: Target) -> Topic:
        if target.topic == self.closed:
            raise OSError("closed")
        return self.files.topic(target.topic)

    def values(self, name: str) -> list[bytes]:
        return [it.value for it in self.files.topic(name).read()]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def make_batch(*payloads: bytes) -> Batch:
    mappings = TopicMappings()
    streams = [
        Stream.model_validate({"name": name, "fields": FIELDS, "from": ["#"]}) for name in "ab"
    ]
    documents = {Key("stream", it.name): it.document() for it in streams}
    mappings.take(documents, documents)
    entries = [Entry(mappings.of("t"), "t", it, 1_000 + i, 1) for i, it in enumerate(payloads)]
    return Batch(entries, len(entries))


def test_a_batch_that_failed_halfway_goes_on_where_it_stopped(log: Log) -> None:
    async def run() -> None:
        writer = LogWriter(log.open)
        batch = make_batch(b'{"x":1}', b'{"x":2}')
        log.closed = "b"
        with pytest.raises(OSError, match="closed"):
            await writer.write(batch)
        log.closed = ""
        await writer.write(batch)
        writer.close()

    asyncio.run(run())
    assert log.values("a") == log.values("b") == [b'{"x":1}', b'{"x":2}']
    assert [it.milliseconds for it in log.files.topic("a").read()] == [1_000, 1_000]


def test_batches_are_written_in_their_order(log: Log) -> None:
    async def run() -> None:
        writer = LogWriter(log.open)
        await asyncio.gather(*(writer.write(make_batch(b'{"x":%d}' % it)) for it in range(20)))
        writer.close()

    asyncio.run(run())
    assert log.values("b") == [b'{"x":%d}' % it for it in range(20)]
