"""Trouble at Kafka while views run: told clearly, waited out, nothing lost or doubled."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.components import KafkaCluster
from penstock.components.processes import free_port
from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from tests.kafka.clusters import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.sections.kafka import KafkaSettings
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
        thread.join(120)
        assert not thread.is_alive()


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 240) -> None:
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
    with pytest.raises(BrokerError, match=r"check kafka\.user and kafka\.password") as told:
        log.topics()
    assert "wrong" not in str(told.value)
    secret.write_text(kafka.passwords.admin)
    assert isinstance(log.topics(), list)


def test_a_broker_that_is_not_there_is_told(kafka: KafkaCluster) -> None:
    settings = settings_of(kafka, bootstrap=f"127.0.0.1:{free_port()}", timeout="2s")
    with pytest.raises(BrokerError, match=r"check kafka\.bootstrap"):
        KafkaLog(settings).topics()


@pytest.mark.timeout(900)
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


@pytest.mark.timeout(1200)
def test_brokers_may_crash_and_leaders_change(spark: SparkSession, tmp_path: Path) -> None:
    with KafkaCluster(brokers=3, heap="256m") as cluster:
        settings = settings_of(cluster, partitions=2, replication=3, timeout="20s")
        # What the test itself asks may take as long as a new leader takes to be found.
        log = KafkaLog(settings.model_copy(update={"timeout": 90.0}))
        log.make_topic("led")
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            log.topic("led").append(values(range(sent, sent + count)))
            sent += count

        def leaders() -> dict[str, Any]:
            found = log.admin.list_topics(timeout=30).topics
            return {name: found[name].partitions[0].leader for name in ("led", "led-v")}

        send(100)
        with running(spark, tmp_path, "led", settings):
            wait_until(lambda: arrived(log, "led-v") == 100, "the view stands still")
            for topic in ("led", "led-v"):
                leader = leaders()[topic]
                send(50)
                cluster.kill_node(leader)
                send(50)
                wait_until(lambda: arrived(log, "led-v") == sent, f"{topic}: it stands still")
                assert leaders()[topic] != leader
                cluster.start_node(leader)
                send(50)
            wait_until(lambda: arrived(log, "led-v") == sent, "it stands still at the end")
        found = read(log, "led-v")
        assert set(found) == set(range(sent))
        assert set(found.values()) == {1}
