"""Batches that reach Kafka once, whatever crashes: each in a transaction with its mark.

    init (ends what an earlier one left open) ─→ read the mark ─┐
        ┌───────────────────────────────────────────────────────┘
        └→ begin ─→ records, and the mark of the batch ─→ commit ─→ …

Rules that hold here:
- Who writes under a name fences off all who wrote under it before: what they had not
  committed is undone, and they can commit no more.
- The mark of the newest batch stands in a topic of marks, which keeps the newest of each
  writer for good. It is committed with the records or not at all, so that after a crash it
  says which batch was the last. The offsets of a consumer group would do as well, but the
  broker forgets them after a week.
- Another writer's open transaction hides marks that were committed behind its own. The mark
  is therefore read when all that was there at first is decided.
- After any failure the writer is of no use; a new one finds out what was committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.errors import quote
from penstock.eventlog.connection import BrokerError, explain, producer_settings
from penstock.eventlog.kafka import MISSING_MILLISECONDS, KafkaLog

MARKS: Final = "penstock-marks"
_KEPT: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
# How long an open transaction of a crashed process can keep readers waiting.
TRANSACTION_SECONDS: Final = 30.0
CHUNK: Final = 2_000
LOOK_SECONDS: Final = 0.05


class TransactionalWriter:
    """Writes batches under a name; use it from one thread."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self._log = log
        self._name = name
        log.make_topic(MARKS, 1, _KEPT)
        found = producer_settings(log.settings, log.user, log.password, transaction=name)
        more = {
            "transaction.timeout.ms": round(TRANSACTION_SECONDS * 1000),
            "linger.ms": 20,
            "topic.metadata.propagation.max.ms": MISSING_MILLISECONDS,
            "batch.num.messages": 100_000,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
        self._producer = Producer({**found, **more})
        try:
            self._producer.init_transactions(log.settings.timeout)
            self.mark = self._read_mark()
        except KafkaException as error:
            raise log.explain(f"the writer {quote(name)} could not begin", error) from error

    def write(
        self, topic: str, values: Iterable[bytes], mark: bytes, *, key: bytes | None = None
    ) -> int:
        """Write a batch and its mark, all or nothing; return the number of its records."""
        producer = self._producer
        try:
            producer.begin_transaction()
            count = self._produce(topic, values, key)
            producer.produce(MARKS, mark, self._name.encode(), partition=0)
            _commit(producer, max(self._log.settings.timeout, TRANSACTION_SECONDS))
        except (KafkaException, BufferError) as error:
            self._abort()
            raise explain(f"it did not take a batch for {quote(topic)}", error) from error
        except BaseException:
            self._abort()
            raise
        self.mark = mark
        return count

    def _produce(self, topic: str, values: Iterable[bytes], key: bytes | None) -> int:
        producer, count = self._producer, 0
        produce = producer.produce
        for value in values:
            while True:
                try:
                    produce(topic, value, key)
                except BufferError:
                    producer.poll(LOOK_SECONDS)
                else:
                    break
            count += 1
            if count % CHUNK == 0:
                producer.poll(0)
        return count

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(self._log.settings.timeout)
        except KafkaException:
            # The next writer of this name, or the broker's own clock, ends the transaction.
            return

    def _read_mark(self) -> bytes | None:
        """Return the newest mark, or None where no batch was ever written."""
        place = TopicPartition(MARKS, 0)
        limit = self._log.settings.timeout
        every = self._log.consumer(**{"isolation.level": "read_uncommitted"})
        reader = self._log.consumer()
        try:
            end = every.get_watermark_offsets(place, timeout=limit)[1]
            deadline = time.monotonic() + TRANSACTION_SECONDS + limit
            while reader.get_watermark_offsets(place, timeout=limit)[1] < end:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        "Kafka: a transaction of another writer does not end",
                        fix="look for it with kafka-transactions.sh, and abort it",
                    )
                time.sleep(LOOK_SECONDS)
            return self._scan(reader, place, limit)
        finally:
            every.close()
            reader.close()

    def _scan(self, reader: Consumer, place: TopicPartition, limit: float) -> bytes | None:
        first, end = reader.get_watermark_offsets(place, timeout=limit)
        if first >= end:
            return None
        found: bytes | None = None
        reader.assign([TopicPartition(MARKS, 0, first)])
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            for message in reader.consume(CHUNK, LOOK_SECONDS):
                error = message.error()
                if error is None:
                    if message.key() == self._name.encode():
                        found = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    return found
                else:
                    raise KafkaException(error)
                deadline = time.monotonic() + limit
        raise explain("marks of batches did not come", TimeoutError(f"in {limit:g} s"))


def _commit(producer: Any, seconds: float) -> None:
    """Commit; where the answer is late, ask again, which changes nothing."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            producer.commit_transaction(seconds)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class TransactionalTopic:
    """One topic that chunks go to, each in a transaction with its mark."""

    def __init__(self, log: KafkaLog, topic: str, name: str) -> None:
        self._topic = topic
        self._writer = TransactionalWriter(log, name)

    @property
    def mark(self) -> bytes | None:
        """The mark of the newest chunk."""
        return self._writer.mark

    def write(self, values: Sequence[bytes], mark: bytes) -> None:
        """Write a chunk and the mark behind it."""
        self._writer.write(self._topic, values, mark)
