"""Trouble at Kafka while views run: told clearly, waited out, nothing lost or doubled."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from penstock.components import KafkaCluster
from penstock.components.processes import free_port
from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from tests.support.kafka.clusters import kill_node, settings_of, start_node

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import PartitionMetadata
    from pyspark.sql import SparkSession

    from penstock.config.brokers import KafkaSettings
    from penstock.pipeline.manager import Manager

pytestmark = pytest.mark.needs("java", "jars")


def define(stream: str) -> DefinitionSet:
    fields = [{"name": "pid", "type": "int"}]
    body = {"fields": fields, "subject": "pid", "source": "kafka"}
    view = {"stream": stream, "format": "topic"}
    return DefinitionSet.build([Document("stream", stream, body), Document("view", "v", view)])


@contextmanager
def running(
    spark: SparkSession, folder: Path, stream: str, kafka: KafkaSettings
) -> Iterator[Manager]:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(folder, {}).pipeline.model_copy(update={"interval": 0.1, "batch": 50})
    definitions = define(stream)
    manager = Manager(spark, settings, lambda: definitions, kafka=kafka)
    manager.control.change("v", "start")
    told = threading.Event()
    thread = threading.Thread(target=manager.run, args=(told,))
    thread.start()
    try:
        yield manager
    finally:
        told.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


# Long, as a busy machine may need it: what is waited for comes sooner or not at all.
PATIENCE = 900.0


def wait_until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def values(numbers: range) -> list[bytes]:
    return [json.dumps({"pid": n}).encode() for n in numbers]


def read(log: KafkaLog, topic: str) -> Counter[int]:
    if topic not in log.topics():
        return Counter()
    found: Counter[int] = Counter()
    for number, (start, end) in log.topic(topic).ends().items():
        records = log.topic(topic).read_partition(number, start, end)
        found.update(json.loads(record.value)["pid"] for record in records)
    return found


def arrived(log: KafkaLog, topic: str) -> int:
    """Count what is there; while a leader is missing, nobody can tell."""
    try:
        return len(read(log, topic))
    except BrokerError:
        return -1


def partition_of(log: KafkaLog, topic: str) -> PartitionMetadata | None:
    """Return what the brokers know of the first partition; while they cannot tell, None."""
    try:
        found = log.admin.list_topics(topic, timeout=30).topics.get(topic)
    except KafkaException:
        return None
    return found.partitions.get(0) if found is not None else None


def find_leader(log: KafkaLog, topic: str, *, after: int = 0) -> int:
    """Wait until a partition has a leader, another one than before, and return it."""
    found: list[int] = []

    def is_led() -> bool:
        partition = partition_of(log, topic)
        if partition is None or partition.leader <= 0 or partition.leader == after:
            return False
        found.append(int(partition.leader))
        return True

    wait_until(is_led, f"{topic} gets no leader")
    return found[0]


def have_all(log: KafkaLog, topics: Iterable[str], brokers: int) -> bool:
    """Say whether all brokers have all of these topics."""
    found = [partition_of(log, topic) for topic in topics]
    return all(it is not None and len(it.isrs) == brokers for it in found)


def error_of(manager: Manager) -> str:
    condition = manager.control.condition("v")
    return (condition.error or "") if condition else ""


def test_a_wrong_password_is_told_and_the_mended_one_taken(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("wrong")
    log = KafkaLog(settings_of(kafka, password={"file": str(secret)}, timeout="5s"))
    with pytest.raises(BrokerError, match=r"check how kafka logs in") as told:
        log.topics()
    assert "wrong" not in str(told.value)
    secret.write_text(kafka.passwords.admin)
    assert isinstance(log.topics(), list)


def test_a_broker_that_is_not_there_is_told(kafka: KafkaCluster) -> None:
    settings = settings_of(kafka, bootstrap=f"127.0.0.1:{free_port()}", timeout="2s")
    with pytest.raises(BrokerError, match=r"check kafka\.bootstrap"):
        KafkaLog(settings).topics()


@pytest.mark.timeout(3600)
def test_a_topic_that_is_deleted_is_waited_for(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    settings = settings_of(kafka, timeout="5s")
    log = KafkaLog(settings)
    log.make_topic("gone")
    log.topic("gone").append(values(range(70)))
    with running(spark, tmp_path, "gone", settings) as manager:
        wait_until(lambda: len(read(log, "gone-v")) == 70, "the view stands still")
        log.admin.delete_topics(["gone"])["gone"].result(30)
        wait_until(lambda: "'gone'" in error_of(manager), "nobody tells of the topic")
        state = manager.control.condition("v")
        assert state is not None
        assert state.state == "running"
        wait_until(lambda: log.make_topic("gone"), "the topic cannot be made again")
        log.topic("gone").append(values(range(70, 90)))
        wait_until(lambda: len(read(log, "gone-v")) == 90, "the view does not go on")
        wait_until(lambda: not error_of(manager), "the trouble is still told")
    assert set(read(log, "gone-v").values()) == {1}
    assert set(read(log, "gone-v")) == set(range(90))


@pytest.mark.timeout(7200)
def test_brokers_may_crash_and_leaders_change(spark: SparkSession, tmp_path: Path) -> None:
    with KafkaCluster(brokers=3, heap="256m") as cluster:
        settings = settings_of(cluster, partitions=2, replication=3, timeout="20s")
        # What the test itself asks may take as long as a new leader takes to be found.
        log = KafkaLog(settings.model_copy(update={"timeout": 600.0}))
        log.make_topic("led")
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            log.topic("led").append(values(range(sent, sent + count)))
            sent += count

        send(100)
        with running(spark, tmp_path, "led", settings):
            wait_until(lambda: arrived(log, "led-v") == 100, "the view stands still")
            for topic in ("led", "led-v"):
                # Who crashes next must not be the only one who has everything.
                wait_until(lambda: have_all(log, ("led", "led-v"), 3), "copies are missing")
                leader = find_leader(log, topic)
                send(50)
                kill_node(cluster, leader)
                send(50)
                find_leader(log, topic, after=leader)
                wait_until(lambda: arrived(log, "led-v") == sent, f"{topic}: it stands still")
                start_node(cluster, leader)
                send(50)
            wait_until(lambda: arrived(log, "led-v") == sent, "it stands still at the end")
        wait_until(lambda: arrived(log, "led-v") == sent, "what was there cannot be read")
        found = read(log, "led-v")
        assert set(found) == set(range(sent))
        assert set(found.values()) == {1}
