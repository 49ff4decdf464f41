"""From a record's way into Kafka to its way out of a view's topic, at 5,000 records a second.

Method:
- A process sends records at an even pace, each with the time at which it was handed to the
  producer; another reads the view's topic, committed records only, and takes the difference.
  Between them stands one value-based view. It begins when some records have passed, and the
  first seconds do not count.
- `batches`: the pipeline as it runs, each record once.
- `real_time_trigger`: the same parsing and the same masks in one query of Spark with its
  real-time trigger. No user gets it: it writes to Kafka at least once, keeps no dead letters
  where the pipeline does, and asks for opt-outs once, when it starts. Its dead letters go to a
  topic, so that the work is the same. What it shows is what these promises cost.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.config.brokers import KafkaSettings
from penstock.config.installation import PipelineSettings
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from penstock_lab.bench.kafka.copy import FIELDS, MASKS, make_value, settings_for

if TYPE_CHECKING:
    # Not loaded here: the processes that send and receive need no Spark.
    from pyspark.sql import SparkSession

RATE: Final = 5_000
WARM_SECONDS: Final = 5
SECONDS: Final = 30
QUICK_SECONDS: Final = 5
WARM_ROUNDS: Final = 12
TICK: Final = 0.01
INTERVAL: Final = 0.01
PATIENCE: Final = 60.0
# How long one of its batches lasts: records do not wait for its end, only the next begins then.
REAL_TIME_SECONDS: Final = 300


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure both, one after another, at brokers of their own."""
    seconds = WARM_SECONDS + (QUICK_SECONDS if quick else SECONDS)
    found: dict[str, Any] = {"rate_per_second": RATE}
    for name, running in (("batches", _running_pipeline), ("real_time_trigger", _running_query)):
        with KafkaCluster(heap="512m") as cluster, tempfile.TemporaryDirectory() as folder:
            settings = settings_for(cluster)
            log = KafkaLog(settings)
            for topic in ("patients", "patients-v", "patients-v-dead"):
                log.make_topic(topic)
            pipeline = defaults(Path(folder), {}).pipeline.model_copy(update={"interval": INTERVAL})
            with _session(pipeline) as spark, running(spark, pipeline, log):
                start = _warm_up(log)
                found[name] = _measure(settings, seconds, start)
    return found


@contextmanager
def _session(pipeline: PipelineSettings) -> Iterator[SparkSession]:
    from penstock.pipeline.session import open_session  # noqa: PLC0415 - see above

    spark = open_session(pipeline)
    try:
        yield spark
    finally:
        spark.stop()


def _define() -> DefinitionSet:
    fields = [*FIELDS, {"name": "sent", "type": "double"}]
    view = {"stream": "patients", "format": "topic", "anonymizers": MASKS}
    return DefinitionSet.build(
        [
            Document("stream", "patients", {"fields": fields, "source": "kafka"}),
            Document("view", "v", view),
        ]
    )


@contextmanager
def _running_pipeline(
    spark: SparkSession, pipeline: PipelineSettings, log: KafkaLog
) -> Iterator[None]:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - see above

    definitions = _define()
    manager = Manager(spark, pipeline, lambda: definitions, kafka=log.settings)
    manager.control.change("v", "start")
    told = threading.Event()
    runner = threading.Thread(target=manager.run, args=(told,))
    runner.start()
    try:
        yield
    finally:
        told.set()
        runner.join()


@contextmanager
def _running_query(
    spark: SparkSession, pipeline: PipelineSettings, log: KafkaLog
) -> Iterator[None]:
    from penstock_lab.bench.kafka.real_time import start_query  # noqa: PLC0415 - see above

    checkpoint = pipeline.folder / "real-time"
    query = start_query(spark, _define(), log, checkpoint, REAL_TIME_SECONDS)
    try:
        yield
    finally:
        query.stop()


def _warm_up(log: KafkaLog) -> int:
    """Send records ahead, until they pass; return where the view's topic ends then.

    Otherwise what piles up while Spark starts would be measured.
    """
    for _ in range(WARM_ROUNDS):
        before = log.topic("patients-v").next_offset
        log.topic("patients").append([make_value(number, sent=0.0) for number in range(RATE)])
        deadline = time.monotonic() + 4 * PATIENCE
        while log.topic("patients-v").next_offset < before + RATE:
            if time.monotonic() > deadline:
                raise AssertionError("no records come out of the view")
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
        "records": len(counted),
        "p50_ms": round(cuts[49] * 1000, 1),
        "p99_ms": round(cuts[98] * 1000, 1),
        "longest_ms": round(max(counted) * 1000, 1),
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
