"""Topics of a Kafka cluster, behind the verbs of the event log: append, read, where it ends.

Rules that hold here:
- What `append` returned has reached all copies in sync. A producer repeats what got lost on
  the way and the broker drops what came twice (idempotence); a crash of ours in the middle
  leaves the first part. Who needs all or nothing writes in `transactions`.
- Readers see committed records only.
- A topic with one partition has offsets as a file has. One with several has them partition
  by partition: `ends`, `read_partition`.
- Whatever Kafka fails at is a `BrokerError`, after a bounded wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from penstock.config.brokers import KafkaSettings
from penstock.errors import UsageError, quote
from penstock.eventlog.connection import (
    GREETING_SECONDS,
    TOPIC_CONFIG,
    BrokerError,
    client_settings,
    consumer_settings,
    explain,
    producer_settings,
)
from penstock.eventlog.files import MAX_KEY, Record, check_value

POLL_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 2.0
# So long a topic that is not there may still come.
MISSING_MILLISECONDS: Final = 5000
FETCH: Final = 10_000
# A broker takes messages of 1 MiB with all that is around the value.
MAX_VALUE: Final = 1_000_000
_TIMES: Final = 1  # the first is the kind of time, the second the milliseconds


class RecordPosition(NamedTuple):
    """Where a record stands in a topic."""

    partition: int
    offset: int


class TopicDescription(NamedTuple):
    """A topic: its identity, another one when it is made again, and its partitions."""

    identity: str
    partitions: tuple[int, ...]


class TopicRetention(NamedTuple):
    """How long a topic keeps records: milliseconds, None for good; and whether it is compacted."""

    milliseconds: int | None
    compacted: bool


class KafkaLog:
    """The topics of a cluster, as one user sees them; Penstock's own where none is named."""

    def __init__(
        self, settings: KafkaSettings, user: str | None = None, password: str | None = None
    ) -> None:
        self.settings = settings
        self.user = settings.user if user is None else user
        self._password = password
        self._noted: KafkaError | None = None

    @property
    def password(self) -> str | None:
        """The password of the user; None for Penstock's own, who logs in as the settings say."""
        return self._password

    def topic(self, name: str) -> KafkaTopic:
        """Return a topic; it need not be there yet."""
        return KafkaTopic(self, name)

    def greet(self) -> None:
        """Raise soon where no broker answers: for verbs, where a person waits."""
        self.topics(GREETING_SECONDS)

    def topics(self, limit: float | None = None) -> list[str]:
        """Return the names of the topics that the user may know of."""
        limit = self.settings.timeout if limit is None else min(limit, self.settings.timeout)
        deadline = time.monotonic() + limit - LOOK_SECONDS
        while True:
            try:
                found = self.admin.list_topics(timeout=LOOK_SECONDS).topics
            except KafkaException as error:
                # A client goes on trying with a wrong password; there is no use in it.
                if self.refused() or time.monotonic() > deadline:
                    raise self.explain("it did not list its topics", error) from error
            else:
                return sorted(name for name in found if not name.startswith("__"))

    def make_topic(
        self, name: str, partitions: int | None = None, config: dict[str, str] | None = None
    ) -> bool:
        """Make a topic if it is not there; return whether it was made."""
        if name in self.topics():
            return False
        copies = self.settings.replication or -1
        number = self.settings.partitions if partitions is None else partitions
        wanted = NewTopic(name, number, copies, config=TOPIC_CONFIG if config is None else config)
        made = self.admin.create_topics([wanted], request_timeout=self.settings.timeout)[name]
        try:
            made.result(self.settings.timeout + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self.explain(f"it did not make the topic {quote(name)}", error) from error
        except TimeoutError as error:
            raise self.explain(f"it did not make the topic {quote(name)}", error) from error
        return True

    @cached_property
    def admin(self) -> AdminClient:
        """The client that asks for topics and makes them."""
        found = client_settings(self.settings, self.user, self.password)
        found["error_cb"] = self._note
        return AdminClient(found)

    def explain(self, what: str, error: BaseException) -> BrokerError:
        """Say what failed; where nobody let us in, that is why.

        Clients are made anew for the next try: they look for brokers again, and ask for the
        password again, which somebody may have corrected.
        """
        noted = self._noted if self.refused() else None
        self._noted = None
        for client in ("admin", "producer", "reader"):
            self.__dict__.pop(client, None)
        return explain(what, error if noted is None else KafkaException(noted))

    def refused(self) -> bool:
        """Whether the cluster did not take the user's password, as far as it was asked."""
        if "admin" in self.__dict__:
            self.admin.poll(0)
        return self._noted is not None

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - its public name
            self._noted = error

    @cached_property
    def producer(self) -> Producer:
        """The client that appends."""
        found = producer_settings(self.settings, self.user, self.password)
        limit = round(self.settings.timeout * 1000)
        return Producer(
            {
                **found,
                "delivery.timeout.ms": limit,
                "linger.ms": 5,
                "topic.metadata.propagation.max.ms": MISSING_MILLISECONDS,
            }
        )

    @cached_property
    def reader(self) -> Consumer:
        """The client that asks where partitions end."""
        return self.consumer()

    def consumer(self, **more: Any) -> Consumer:
        """Return a client that reads; it joins no group."""
        found = consumer_settings(self.settings, self.user, self.password)
        return Consumer({**found, "error_cb": self._note, "enable.partition.eof": True, **more})


class KafkaTopic:
    """The records of one topic."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self.name = name
        self._log = log
        self._timeout = log.settings.timeout

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> list[RecordPosition]:
        """Append records, and return their places once all copies have them."""
        places: dict[int, RecordPosition] = {}
        wrong: list[KafkaError] = []
        named = keys if keys is not None else [b""] * len(values)
        for value in values:
            check_value(value, MAX_VALUE)
        for key in named:
            check_value(key, MAX_KEY)
        producer = self._log.producer
        at: dict[str, Any] = {} if milliseconds is None else {"timestamp": milliseconds}
        for number, (value, key) in enumerate(zip(values, named, strict=True)):

            def note(error: KafkaError | None, message: Any, number: int = number) -> None:
                if error is not None:
                    wrong.append(error)
                else:
                    places[number] = RecordPosition(message.partition(), message.offset())

            self._produce(producer, value, key or None, at, note)
        left = producer.flush(self._timeout + 5)
        if wrong or left or len(places) < len(values):
            what = f"it did not take {len(values) - len(places)} records for {quote(self.name)}"
            cause = wrong[0] if wrong else "they did not arrive in time"
            raise self._log.explain(what, KafkaException(cause) if wrong else TimeoutError(cause))
        return [places[number] for number in range(len(values))]

    def _produce(
        self, producer: Producer, value: bytes, key: bytes | None, at: dict[str, Any], note: Any
    ) -> None:
        while True:
            try:
                producer.produce(self.name, value, key, on_delivery=note, **at)
            except BufferError:
                producer.poll(POLL_SECONDS)
            except KafkaException as error:
                raise self._log.explain(
                    f"it did not take a record for {quote(self.name)}", error
                ) from error
            else:
                return

    def retention(self) -> TopicRetention:
        """Return how long the brokers keep records."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        asked = self._log.admin.describe_configs([resource], request_timeout=self._timeout)
        try:
            found = asked[resource].result(self._timeout + 5)
        except (KafkaException, TimeoutError) as error:
            what = f"it did not say how long {quote(self.name)} is kept"
            raise self._log.explain(what, error) from error
        milliseconds = int(found["retention.ms"].value)
        policies = found["cleanup.policy"].value.split(",")
        kept = milliseconds if "delete" in policies and milliseconds >= 0 else None
        return TopicRetention(kept, "compact" in policies)

    def bury(self, key: bytes) -> int:
        """Write a record without a value for a key into each partition; return how many.

        Into each, because producers choose partitions by rules of their own.
        """
        producer, wrong = self._log.producer, list[KafkaError]()
        partitions = self.describe().partitions

        def note(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                wrong.append(error)

        for number in partitions:
            producer.produce(self.name, None, key, partition=number, on_delivery=note)
        if producer.flush(self._timeout + 5) or wrong:
            what = f"it did not take tombstones for {quote(self.name)}"
            raise self._log.explain(what, KafkaException(wrong[0]) if wrong else TimeoutError())
        return len(partitions)

    def delete_records(self) -> None:
        """Delete all records that are there now; offsets go on behind them."""
        asked = [TopicPartition(self.name, it, OFFSET_END) for it in self.describe().partitions]
        answers = self._log.admin.delete_records(asked, request_timeout=self._timeout)
        for answer in answers.values():
            try:
                answer.result(self._timeout + 5)
            except (KafkaException, TimeoutError) as error:
                what = f"it did not delete the records of {quote(self.name)}"
                raise self._log.explain(what, error) from error

    def describe(self) -> TopicDescription:
        """Return id and partitions of the topic; raise where there is none."""
        asked = self._log.admin.describe_topics(
            TopicCollection([self.name]), request_timeout=self._timeout
        )
        try:
            found = asked[self.name].result(self._timeout + 5)
        except (KafkaException, TimeoutError) as error:
            raise self._log.explain(
                f"the topic {quote(self.name)} cannot be read", error
            ) from error
        return TopicDescription(
            str(found.topic_id), tuple(sorted(it.id for it in found.partitions))
        )

    def ends(self, partitions: Sequence[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return where each partition begins, and where what is committed ends."""
        reader = self._log.reader
        found = {}
        for number in self.describe().partitions if partitions is None else partitions:
            place = TopicPartition(self.name, number)
            try:
                found[number] = reader.get_watermark_offsets(place, timeout=self._timeout)
            except KafkaException as error:
                what = f"it did not say where {quote(self.name)} ends"
                raise self._log.explain(what, error) from error
            if found[number] is None:
                raise self._log.explain(
                    f"it did not say where {quote(self.name)} ends", TimeoutError()
                )
        return found

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets, in a topic of one partition."""
        return self._only()[1]

    @property
    def first_offset(self) -> int:
        """The offset of the oldest record that is still held, in a topic of one partition."""
        return self._only()[0]

    def read(self, start: int = 0, limit: int | None = None) -> Iterator[Record]:
        """Yield committed records of a topic of one partition, to the end that it has now."""
        first, end = self._only()
        yield from self.read_partition(0, max(first, start), end, limit)

    def read_partition(
        self, partition: int, start: int, end: int, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield committed records from an offset to before another."""
        if start >= end:
            return
        reader = self._log.consumer()
        reader.assign([TopicPartition(self.name, partition, start)])
        deadline = time.monotonic() + self._timeout
        given = 0
        try:
            while given != limit and time.monotonic() < deadline:
                for message in reader.consume(FETCH, POLL_SECONDS):
                    error = message.error()
                    ended = error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
                    if error is not None and not ended:
                        what = f"it did not give records of {quote(self.name)}"
                        raise self._log.explain(what, KafkaException(error))
                    # The end may be a mark of a transaction, which is never given out.
                    if (message.offset() or 0) >= end:
                        return
                    if not ended:
                        yield _record(message)
                        given += 1
                    if given == limit:
                        return
                    deadline = time.monotonic() + self._timeout
        finally:
            reader.close()
        if given != limit:
            what = f"records of {quote(self.name)} before {end} did not come"
            raise self._log.explain(what, TimeoutError(f"nothing came in {self._timeout:g} s"))

    def _only(self) -> tuple[int, int]:
        ends = self.ends()
        if len(ends) != 1:
            raise UsageError(
                f"the topic {quote(self.name)} has {len(ends)} partitions, each with its offsets",
                fix="read it partition by partition",
            )
        return ends[0]


def _record(message: Any) -> Record:
    milliseconds = message.timestamp()[_TIMES]
    return Record(message.offset(), milliseconds, message.key() or b"", message.value() or b"")


__all__ = ["BrokerError", "KafkaLog", "KafkaTopic", "RecordPosition"]
