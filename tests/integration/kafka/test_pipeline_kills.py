"""kill -9 while views go to topics at Kafka: readers of committed records see each once.

Half of the kills fall anywhere, the others while views advance. The reader is a plain client
that knows nothing of us; what it has seen once must be there, the same, at the end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.components import KafkaCluster
from penstock.eventlog.connection import consumer_settings, read_password
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.transactions import TransactionalWriter
from tests.support.forked_commands import forked_penstock
from tests.support.kafka.clusters import settings_of
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("java", "jars")

KILLS = scaled(2)
RECORDS = max(4000, 1500 * KILLS)
LONGEST_START = 12.0
VIEWS = ("noisy", "research")
DEFINITIONS = """\
kind: stream
name: killed
fields:
  - {name: pid, type: int, category: identifier}
  - {name: age, type: int, category: quasi-identifier}
  - {name: glucose, type: double, category: sensitive}
  - {name: number, type: int}
subject: pid
source: kafka
---
{kind: view, name: noisy, stream: killed, format: topic, anonymizers: [
  {anonymizer: suppression, keys: [pid]},
  {anonymizer: noise, keys: [glucose], noise: 0.5}]}
---
{kind: view, name: research, stream: killed, format: topic, anonymizers: [
  {anonymizer: k_anonymization, keys: [pid], k: 5, delta: 100,
   quasi_identifiers: [{key: age, min: 0, max: 120}]}]}
"""


def settings_text(kafka: KafkaCluster) -> str:
    return (
        "pipeline: {batch: 150, interval: 50ms, memory: 1g}\n"
        f"kafka: {{bootstrap: '{kafka.bootstrap}', security: sasl_plaintext, partitions: 2, "
        f"password: {{file: '{kafka.admin_password_file}'}}}}\n"
        "monitor: {enabled: false}\n"
    )


def read_committed(kafka: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    """Read what a reader of committed records sees now; a topic that is not there has none."""
    settings = settings_of(kafka)
    found = consumer_settings(settings, settings.user, read_password(settings))
    reader = confluent_kafka.Consumer({**found, "enable.partition.eof": True})
    known = reader.list_topics(timeout=30).topics
    if topic not in known:
        return []
    waiting = set(known[topic].partitions)
    reader.assign(
        [
            confluent_kafka.TopicPartition(topic, it, confluent_kafka.OFFSET_BEGINNING)
            for it in waiting
        ]
    )
    records = []
    deadline = time.monotonic() + 60
    while waiting:
        assert time.monotonic() < deadline, "the topic was not read to its end"
        for message in reader.consume(1000, 0.2):
            if message.error() is None:
                records.append(json.loads(message.value() or b""))
            else:
                waiting.discard(message.partition())
    reader.close()
    return records


def run(folder: Path, *arguments: str) -> None:
    subprocess.run([*forked_penstock(), *arguments], cwd=folder, check=True, capture_output=True)


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "views", "run"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def check_kept(before: dict[int, Any], rows: list[dict[str, Any]]) -> dict[int, Any]:
    now = {row["number"]: row for row in rows}
    assert len(now) == len(rows), "a record is there twice"
    assert before.items() <= now.items()
    return now


@pytest.mark.timeout(200 + 120 * KILLS)
def test_each_record_is_in_each_topic_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    draw = random.Random(2025)
    (tmp_path / "penstock.yaml").write_text(settings_text(kafka))
    (tmp_path / "d.yaml").write_text(DEFINITIONS)
    run(tmp_path, "apply", "-f", "d.yaml")
    run(tmp_path, "views", "start", "--all")
    log = KafkaLog(settings_of(kafka, partitions=2))
    log.make_topic("killed")
    records = [
        {"pid": n // 3, "age": n * 7 % 90, "glucose": 100.0 + n % 50, "number": n}
        for n in range(RECORDS)
    ]
    values = [json.dumps(record).encode() for record in records]
    log.topic("killed").append(values, [b"%d" % n for n in range(RECORDS)])

    seen: dict[str, dict[int, Any]] = {name: {} for name in VIEWS}

    def look() -> int:
        for name in VIEWS:
            seen[name] |= check_kept(seen[name], read_committed(kafka, f"killed-{name}"))
        return min(map(len, seen.values()))

    def wait_for(count: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 150
        while look() < count:
            assert process.poll() is None, "the runner ended by itself"
            assert time.monotonic() < deadline, f"the views stand still at {look()}"
            time.sleep(0.2)

    for kill in range(KILLS):
        runner = start(tmp_path)
        try:
            if kill % 2:
                time.sleep(draw.random() * LONGEST_START)
                assert runner.poll() is None, "the runner ended by itself"
            else:
                wait_for(RECORDS * (kill + 1) // (KILLS + 2), runner)
                time.sleep(draw.random())
        finally:
            os.killpg(runner.pid, 9)
            runner.wait()
        look()
    runner = start(tmp_path)
    try:
        wait_for(RECORDS - 100, runner)
    finally:
        runner.terminate()
        runner.wait(60)
    run(tmp_path, "views", "run", "--once")
    run(tmp_path, "views", "stop", "--all")
    run(tmp_path, "views", "run", "--once")
    look()
    assert sorted(seen["noisy"]) == list(range(RECORDS))
    dead = [
        (json.loads(line)["partition"], json.loads(line)["offset"])
        for path in (tmp_path / "penstock-data" / "views" / "research" / "dead").glob("*")
        for line in path.read_text().splitlines()
    ]
    assert len(dead) == len(set(dead))
    assert len(seen["research"]) + len(dead) == RECORDS


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_a_batch_is_there_once_whenever_the_process_ends(
    moment: str, kafka: KafkaCluster, tmp_path: Path
) -> None:
    from penstock.pipeline.sinks.commits import Commit  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.sinks.formats import KafkaSink, read_lines  # noqa: PLC0415

    log = KafkaLog(settings_of(kafka))
    topic = f"moment-{moment}"
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    first.write_bytes(b'{"n":1}\n{"n":2}\n')
    sink = KafkaSink(log, topic)
    sink.deliver(Commit(0, "", at=5), [first], again=False)
    assert not first.exists()

    commit = Commit(1, "", at=9)
    again.write_bytes(b'{"n":3}\n{"n":4}\n')
    kept = tmp_path / "kept"
    shutil.copy(again, kept)
    if moment == "within":
        # Its records are on the way, and nobody will ever commit them.
        ghost = TransactionalWriter(log, topic)
        ghost._producer.begin_transaction()
        ghost._produce(topic, read_lines([again]), None)
        ghost._producer.flush()
    elif moment == "after":
        sink.deliver(commit, [again], again=False)
        shutil.copy(kept, again)  # it was not removed yet
    KafkaSink(log, topic).deliver(commit, [again], again=True)
    assert not again.exists()
    assert [record["n"] for record in read_committed(kafka, topic)] == [1, 2, 3, 4]
