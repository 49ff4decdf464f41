"""Streams and views at a real Kafka: what goes in comes out, once, for readers of any kind."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.components import KafkaCluster
from penstock.errors import UsageError
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.transactions import TransactionalWriter
from tests.support.kafka.clusters import settings_of

pytestmark = pytest.mark.needs("java", "jars")


def test_what_is_appended_is_read_in_order(kafka: KafkaCluster) -> None:
    log = KafkaLog(settings_of(kafka))
    assert log.make_topic("plain")
    assert not log.make_topic("plain")
    topic = log.topic("plain")
    assert topic.next_offset == 0
    began = time.time() * 1000
    places = topic.append([b"a", b"b"], [b"k", b""], milliseconds=7)
    assert [place.offset for place in places] == [0, 1]
    topic.append([b"c"])
    found = list(topic.read())
    assert [(it.offset, it.key, it.value) for it in found] == [
        (0, b"k", b"a"),
        (1, b"", b"b"),
        (2, b"", b"c"),
    ]
    # When they arrived is what the brokers say, not what their producer does.
    assert began - 60_000 < found[0].milliseconds <= found[2].milliseconds < began + 60_000
    assert [it.value for it in topic.read(1, 1)] == [b"b"]
    assert (topic.first_offset, topic.next_offset) == (0, 3)
    assert "plain" in log.topics()


def test_partitions_have_offsets_of_their_own(kafka: KafkaCluster) -> None:
    log = KafkaLog(settings_of(kafka, partitions=3))
    log.make_topic("wide")
    log.topic("wide").append([b"x"] * 30, [b"%d" % n for n in range(30)])
    ends = log.topic("wide").ends()
    assert sum(end for _, end in ends.values()) == 30
    held = [len(list(log.topic("wide").read_partition(it, 0, ends[it][1]))) for it in ends]
    assert sum(held) == 30
    with pytest.raises(UsageError, match="3 partitions"):
        next(log.topic("wide").read())


def test_a_batch_and_its_mark_are_there_together_or_not_at_all(kafka: KafkaCluster) -> None:
    log = KafkaLog(settings_of(kafka))
    log.make_topic("batches")
    first = TransactionalWriter(log, "batches")
    assert first.mark is None
    first.write("batches", [b"1", b"2"], b"one")

    def breaks() -> object:
        yield b"3"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        first.write("batches", breaks(), b"two")  # type: ignore[arg-type]
    second = TransactionalWriter(log, "batches")
    assert second.mark == b"one"
    with pytest.raises(BrokerError):
        first.write("batches", [b"from a ghost"], b"ghost")
    second.write("batches", [b"3", b"4"], b"two")
    assert TransactionalWriter(log, "batches").mark == b"two"
    assert TransactionalWriter(log, "other").mark is None
    assert [it.value for it in log.topic("batches").read()] == [b"1", b"2", b"3", b"4"]


def test_an_open_transaction_of_another_hides_no_mark(kafka: KafkaCluster) -> None:
    log = KafkaLog(settings_of(kafka))
    log.make_topic("hidden")
    slow, quick = TransactionalWriter(log, "slow"), TransactionalWriter(log, "quick")
    slow._producer.begin_transaction()
    slow._producer.produce("penstock-marks", b"open", b"slow", partition=0)
    slow._producer.flush()
    quick.write("hidden", [b"1"], b"done")

    threading.Timer(1.0, slow._producer.abort_transaction).start()
    assert TransactionalWriter(log, "quick").mark == b"done"
