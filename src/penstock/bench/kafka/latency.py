"""From a record's way into Kafka to its way out of a view's topic, at 5,000 records a second.

Method:
- A process sends records at an even pace, each with the time at which it was handed to the
  producer; another reads the view's topic, committed records only, and takes the difference.
  The pipeline runs between them as it always does, with one value-based view.
- It begins when some batches have passed, and the first seconds do not count.
- Spark's real-time trigger does not apply to it: it takes neither a query whose batches are
  given to a function nor a sink that commits, and what views promise (each record once)
  rests on both. `real_time_trigger` says so in the figures.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final

from penstock.bench.kafka.copy import FIELDS, MASKS, make_value, settings_for
from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.config.sections.kafka import KafkaSettings
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document

RATE: Final = 5_000
WARM_SECONDS: Final = 5
SECONDS: Final = 30
QUICK_SECONDS: Final = 5
WARM_ROUNDS: Final = 4
TICK: Final = 0.01
INTERVAL: Final = 0.01
PATIENCE: Final = 60.0
WHY_NOT: Final = (
    "does not apply: it takes no function for batches and no sink that commits, "
    "so that records could come twice"
)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure a running pipeline."""
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - the processes need no Spark
    from penstock.pipeline.session import open_session  # noqa: PLC0415

    seconds = QUICK_SECONDS if quick else SECONDS
    documents = [
        Document(
            "stream",
            "patients",
            {"fields": [*FIELDS, {"name": "sent", "type": "double"}], "source": "kafka"},
        ),
        Document("view", "v", {"stream": "patients", "format": "topic", "anonymizers": MASKS}),
    ]
    definitions = DefinitionSet.build(documents)
    with KafkaCluster(heap="512m") as cluster, tempfile.TemporaryDirectory() as folder:
        settings = settings_for(cluster)
        log = KafkaLog(settings)
        for topic in ("patients", "patients-v"):
            log.make_topic(topic)
        pipeline = defaults(Path(folder), {}).pipeline.model_copy(update={"interval": INTERVAL})
        spark = open_session(pipeline)
        manager = Manager(spark, pipeline, lambda: definitions, kafka=settings)
        manager.control.change("v", "start")
        told = threading.Event()
        runner = threading.Thread(target=manager.run, args=(told,))
        runner.start()
        try:
            start = _warm_up(log)
            return _measure(settings, WARM_SECONDS + seconds, start)
        finally:
            told.set()
            runner.join()
            spark.stop()


def _warm_up(log: KafkaLog) -> int:
    """Send records ahead, until batches of them pass; return where the view's topic ends then.

    Otherwise what piles up while Spark starts would be measured.
    """
    for _ in range(WARM_ROUNDS):
        before = log.topic("patients-v").next_offset
        log.topic("patients").append([make_value(number, sent=0.0) for number in range(RATE)])
        deadline = time.monotonic() + 2 * PATIENCE
        while log.topic("patients-v").next_offset < before + RATE:
            if time.monotonic() > deadline:
                raise AssertionError("the pipeline does not start")
            time.sleep(TICK)
    return log.topic("patients-v").next_offset


def _measure(settings: KafkaSettings, seconds: int, start: int) -> dict[str, Any]:
    # Processes of their own: they must not wait for what the pipeline does in Python.
    context = multiprocessing.get_context("spawn")
    answer: Queue[list[float]] = context.Queue()
    count = RATE * seconds
    receiver = context.Process(target=_receive, args=(settings, count, start, answer), daemon=True)
    receiver.start()
    sender = context.Process(target=_send, args=(settings, count), daemon=True)
    sender.start()
    try:
        waits = answer.get(timeout=seconds + 4 * PATIENCE)
    finally:
        for process in (sender, receiver):
            process.terminate()
            process.join()
    if len(waits) != count:
        raise AssertionError(f"{len(waits)} of {count} records came out")
    counted = waits[WARM_SECONDS * RATE :]
    cuts = statistics.quantiles(counted, n=100)
    return {
        "rate_per_second": RATE,
        "records": len(counted),
        "p50_ms": round(cuts[49] * 1000, 1),
        "p99_ms": round(cuts[98] * 1000, 1),
        "longest_ms": round(max(counted) * 1000, 1),
        "real_time_trigger": WHY_NOT,
    }


def _send(settings: KafkaSettings, count: int) -> None:
    """Send records at an even pace."""
    producer = KafkaLog(settings).producer
    began, sent = time.time(), 0
    while sent < count:
        due = min(count, round((time.time() - began) * RATE))
        for number in range(sent, due):
            producer.produce("patients", make_value(number, sent=time.time()))
        sent = due
        producer.poll(0)
        time.sleep(TICK)
    producer.flush(PATIENCE)


def _receive(settings: KafkaSettings, count: int, start: int, answer: Queue[list[float]]) -> None:
    """Take the time of each record's way, in the order in which they were sent."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    reader = KafkaLog(settings).consumer(**{"enable.partition.eof": False})
    reader.assign([TopicPartition("patients-v", 0, start)])
    waits: list[tuple[float, float]] = []
    last = time.time() + 3 * PATIENCE
    while len(waits) < count and time.time() < last:
        found = reader.consume(1000, 0.05)
        now = time.time()
        for message in found:
            value = message.value()
            if message.error() is None and value:
                sent = json.loads(value)["sent"]
                waits.append((sent, now - sent))
                last = now + PATIENCE
    answer.put([wait for _, wait in sorted(waits)])
