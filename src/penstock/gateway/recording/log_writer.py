"""The thread that appends batches of messages to the event logs of their streams.

Rules that hold here:
- One batch at a time, in the order in which they are given.
- A batch that failed halfway is resumed where it stopped: streams that have their records
  do not get them twice. What a log may have kept of the append that failed, it may get
  again: a record is written at least once.
- A log that hangs blocks this thread alone, and never the end of the process.
- A stream says where it is kept: in the embedded files, or at Kafka (`source: kafka`).
  Several gateways on one host may write to the same files, under a lock (`eventlog.files`).
  Gateways on several hosts share a stream through Kafka.
- Records of a stream that is `sealed` are sealed as at the broker before they leave the process,
  and those of one with `erasure: shred` each under the key of its person; their keys are marks.
- A topic that is missing at Kafka is created, once more if somebody has deleted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.eventlog import EventLog
from penstock.gateway.recording.topic_mapping import MAX_VALUE, Target, TopicMapping
from penstock.mqtt.properties import UserProperties
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.sealed_records import KeyAddress, Layers, RecordKeys


class Appendable(Protocol):
    """A topic of an event log."""

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> Any:
        """Append records, and return when they will not be lost."""


OpenTopic = Callable[[Target], Appendable]


class Entry(NamedTuple):
    """A message that was accepted, and when."""

    mappings: tuple[TopicMapping, ...]
    topic: str
    payload: bytes
    milliseconds: int
    size: int
    publisher: str | None = None
    properties: UserProperties = ()


class Batch:
    """Messages that are written together."""

    def __init__(self, entries: Sequence[Entry], ticket: int) -> None:
        self.entries = entries
        self.ticket = ticket
        """Of the last of them."""
        self._left: dict[Target, tuple[list[bytes], list[bytes]]] | None = None

    def write(self, open_topic: OpenTopic) -> None:
        """Append what is not written yet, stream by stream."""
        if self._left is None:
            self._left = self._make_records()
        for target in list(self._left):
            keys, values = self._left[target]
            open_topic(target).append(values, keys, milliseconds=self.entries[0].milliseconds)
            del self._left[target]

    def _make_records(self) -> dict[Target, tuple[list[bytes], list[bytes]]]:
        made: dict[Target, tuple[list[bytes], list[bytes]]] = {}
        for entry in self.entries:
            for mapping in entry.mappings:
                keys, values = made.setdefault(mapping.target, ([], []))
                key, value = mapping.record(
                    entry.topic, entry.payload, entry.publisher, entry.properties
                )
                keys.append(key)
                values.append(value)
        return made


class LogWriter:
    """A thread, from its first batch on."""

    def __init__(self, open_topic: OpenTopic) -> None:
        self._open_topic = open_topic
        self._inbox: queue.SimpleQueue[tuple[Batch, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def write(self, batch: Batch) -> asyncio.Future[None]:
        """Write a batch; the future ends when the log has it, or with what went wrong."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            # As a daemon: were it to hang, the process could not end otherwise.
            self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
            self._thread.start()
        self._inbox.put((batch, done))
        return done

    def close(self) -> None:
        """Let the thread end after what it was given."""
        self._inbox.put(None)

    def _run(self) -> None:
        while (given := self._inbox.get()) is not None:
            batch, done = given
            error: Exception | None = None
            try:
                batch.write(self._open_topic)
            except Exception as raised:  # noqa: BLE001 - whoever waits for it deals with it
                error = raised
            # The loop may have ended while the log took its time.
            with contextlib.suppress(RuntimeError):
                done.get_loop().call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class _KafkaLog(Protocol):
    """The topics of a Kafka cluster; its client is imported only where Kafka is used."""

    def topic(self, name: str) -> Appendable:
        """Return a topic; it need not exist yet."""

    def make_topic(self, name: str) -> bool:
        """Create a topic if it does not exist."""


class EventLogs:
    """The event logs that the settings name. Used by one thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._files = EventLog(config.pipeline.event_log)
        self._kafka_topics: dict[str, _KafkaTopic] = {}

    def topic(self, target: Target) -> Appendable:
        """Return the topic that keeps a stream."""
        layers = Layers(target.topic, target.event, target.shredded)
        topic = self._find(target)
        return _SealedTopic(self._keys, topic, layers) if layers else topic

    def _find(self, target: Target) -> Appendable:
        if not target.at_kafka:
            return self._files.topic(target.topic)
        if target.topic not in self._kafka_topics:
            self._kafka_topics[target.topic] = _KafkaTopic(self._kafka, target.topic)
        return self._kafka_topics[target.topic]

    @cached_property
    def _keys(self) -> RecordKeys:
        with Database.open(self._config.store.connection_url()) as database:
            # The key is the one that the database knows, or nothing is written.
            ConsentBook.open(database, self._config.consent.key)
        return KeyAddress.of(self._config).keys()

    @cached_property
    def _kafka(self) -> _KafkaLog:
        # Only who uses Kafka needs its client.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415

        return KafkaLog(self._config.kafka)


class _SealedTopic:
    """A topic whose records are sealed."""

    def __init__(self, keys: RecordKeys, topic: Appendable, layers: Layers) -> None:
        self._keys = keys
        self._topic = topic
        self._layers = layers

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> Any:
        """Append records, sealed."""
        people = keys if keys is not None else [b""] * len(values)
        named, sealed = self._keys.seal(self._layers, people, values, MAX_VALUE)
        return self._topic.append(sealed, named, milliseconds=milliseconds)


class _KafkaTopic:
    """A topic that is created where it is missing."""

    def __init__(self, log: _KafkaLog, name: str) -> None:
        self._log = log
        self._name = name
        self._topic = log.topic(name)
        self._created = False

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> Any:
        """Append records, and return when all replicas have them."""
        if not self._created:
            self._log.make_topic(self._name)
            self._created = True
        try:
            return self._topic.append(values, keys, milliseconds=milliseconds)
        except PenstockError:
            # It may have been deleted.
            self._created = False
            raise
