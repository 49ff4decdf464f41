"""Kafka → one value-based view → Kafka, beside a plain copy from topic to topic by Spark.

Method:
- One broker and Spark on two cores of this machine, on loopback. A topic of one partition is
  filled with patients as JSON, about 200 bytes each.
- `copy`: what anyone would write with Spark alone: a streaming query that reads the topic
  with Spark's connector and writes keys and values to another with it, untouched, with a
  checkpoint. No parsing; records may come twice after a crash.
- `view`: the pipeline as it runs, with one view that suppresses, blurs and buckets; every
  record once for readers of committed records, checked by counting.
- Both read committed records in batches of the same size, one after another without a pause,
  and share each partition among two tasks. They take turns in one run, since machines are
  noisy; the ratio is that of the medians. Each is timed in its stride: the first two batches
  of a round, with which a view opens and Spark compiles its plan, do not count.
- `cpu_us_per_record` is what all processes used (driver, Java, broker), whole rounds: it
  changes less than the clock when other work runs on the machine. The least of the rounds.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.config.brokers import KafkaSettings
from penstock.config.settings import folders
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from penstock.pipeline.manager import Manager
from penstock.pipeline.session import open_session
from penstock.pipeline.sources.kafka import connector_options
from penstock_lab.bench.processes import cpu_seconds

RECORDS: Final = 700_000
QUICK: Final = 300_000
ROUNDS: Final = 5
BATCH: Final = 100_000
SKIPPED: Final = 2 * BATCH
GOAL: Final = 0.8
FIELDS: Final = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "zip", "type": "string", "category": "quasi-identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "glucose", "type": "double", "category": "sensitive"},
    {"name": "diagnosis", "type": "string", "category": "sensitive"},
    {"name": "note", "type": "string"},
]
MASKS: Final = [
    {"anonymizer": "suppression", "keys": ["pid", "name"]},
    {"anonymizer": "blurring", "keys": ["zip"], "n_fields": 3},
    {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
]


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure both, in turns."""
    count, rounds = (QUICK, 2) if quick else (RECORDS, ROUNDS)
    with KafkaCluster(heap="512m") as cluster, tempfile.TemporaryDirectory() as folder:
        settings = settings_for(cluster)
        config = defaults(Path(folder), {}).pipeline
        spark = open_session(config)
        try:
            log = KafkaLog(settings)
            fill(log, "patients", count)
            seconds: dict[str, list[float]] = {"copy": [], "view": []}
            used: dict[str, list[float]] = {"copy": [], "view": []}
            # The first round of each warms up, and does not count.
            for number in range(rounds + 1):
                for name, act in (("copy", _copy), ("view", _view)):
                    before = cpu_seconds()
                    took = act(spark, Path(folder), log, number)
                    if number:
                        seconds[name].append(took)
                        used[name].append(cpu_seconds() - before)
                for topic in (f"copy-{number}", f"patients-v{number}"):
                    if sum(1 for _ in log.topic(topic).read()) != count:
                        raise AssertionError(f"{topic} does not hold each record once")
        finally:
            spark.stop()
    timed = count - SKIPPED
    rates = {name: timed / statistics.median(values) for name, values in seconds.items()}
    costs = {name: min(values) / count * 1e6 for name, values in used.items()}
    return {
        "records": count,
        "rounds": rounds,
        "plain_copy_per_second": round(rates["copy"]),
        "view_per_second": round(rates["view"]),
        "ratio": round(rates["view"] / rates["copy"], 3),
        "ratio_goal": GOAL,
        "cpu_us_per_record": {name: round(cost, 2) for name, cost in costs.items()},
        "cpu_ratio": round(costs["copy"] / costs["view"], 3),
        "seconds": {name: [round(it, 2) for it in values] for name, values in seconds.items()},
    }


def settings_for(cluster: KafkaCluster) -> KafkaSettings:
    """Return the settings of Penstock's own user at a cluster of ours."""
    return KafkaSettings.model_validate(
        {
            "bootstrap": cluster.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(cluster.admin_password_file)},
        },
        context=folders(cluster.folder),
    )


def fill(log: KafkaLog, topic: str, count: int) -> None:
    """Put records into a topic."""
    log.make_topic(topic)
    for start in range(0, count, BATCH):
        numbers = range(start, min(count, start + BATCH))
        log.topic(topic).append([make_value(number) for number in numbers])


def make_value(number: int, **more: Any) -> bytes:
    """Return a record."""
    record = {
        "pid": number,
        "name": f"Patient {number}",
        "zip": f"{number * 7919 % 100_000:05}",
        "age": number * 31 % 100,
        "glucose": 70 + number % 1300 / 10,
        "diagnosis": "Typ-2-Diabetes mit Komplikationen",
        "note": "taken by the night shift",
        **more,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _copy(spark: SparkSession, folder: Path, log: KafkaLog, number: int) -> float:
    """Copy the topic with a query; return the seconds from its third batch on."""
    target = f"copy-{number}"
    log.make_topic(target)
    options = connector_options(log)
    source = {
        "assign": json.dumps({"patients": [0]}),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(BATCH),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
        "kafka.isolation.level": "read_committed",
    }
    frame = spark.readStream.format("kafka").options(**options, **source).load()
    query = (
        frame.select("key", "value")
        .writeStream.format("kafka")
        .options(**options)
        .option("topic", target)
        .option("checkpointLocation", str(folder / target))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ended = time.time()
    began = {batch["batchId"]: batch["timestamp"] for batch in query.recentProgress}
    return ended - datetime.fromisoformat(began[SKIPPED // BATCH]).timestamp()


def _view(spark: SparkSession, folder: Path, log: KafkaLog, number: int) -> float:
    """Make a view of the topic; return the seconds from its second commit on."""
    name = f"v{number}"
    documents = [
        Document("stream", "patients", {"fields": FIELDS, "subject": "pid", "source": "kafka"}),
        Document("view", name, {"stream": "patients", "format": "topic", "anonymizers": MASKS}),
    ]
    definitions = DefinitionSet.build(documents)
    settings = defaults(folder, {}).pipeline.model_copy(update={"batch": BATCH})
    manager = Manager(spark, settings, lambda: definitions, kafka=log.settings)
    manager.control.change(name, "start")
    manager.run_once()
    ended = time.time()
    second = list(manager.control.view(name).commits())[1]
    # A commit is noted just before its records are delivered: those of the second batch are
    # delivered in the time that counts, which is to the view's disadvantage.
    return ended - second.at / 1000
