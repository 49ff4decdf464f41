"""A view of a sealed stream, `erasure: shred`, beside the same view of the same records in clear.

Method:
- One broker and Spark on two cores of this machine, on loopback; keys of people in SQLite. Each
  record is another person's, and people come in no order: that is the worst case, since every key
  has to be loaded. People with more records than one cost less a record.
- `first` is the round in which no task remembers any key. Later ones find those that a task has
  loaded before, as in a view that has run for a while.
- Both views suppress, blur and bucket, take turns, and publish to a topic. One more of the records
  in clear warms up before, and does not count. Rates leave the first
  two batches out, as in `bench kafka`; `cpu_us_per_record` is what all processes used over whole
  rounds, which changes less than the clock where other work runs on the machine.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.components import KafkaCluster
from penstock.config import Config
from penstock.config.settings import folders
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from penstock.pipeline.manager import Manager
from penstock.pipeline.records.parser import use_keys
from penstock.pipeline.session import open_session
from penstock.store.database import Database
from penstock.store.keys import PersonKeys
from penstock_lab.bench.kafka.copy import BATCH, FIELDS, MASKS, SKIPPED, settings_for
from penstock_lab.bench.processes import cpu_seconds
from penstock_lab.bench.progress import tell

PEOPLE: Final = 1_000_000
QUICK: Final = 300_000
ROUNDS: Final = 2
GOAL: Final = 0.5
_PAGE: Final = 10_000
_MOST: Final = 1 << 20
_STREAMS: Final = ("clear", "sealed")
_PATIENCE: Final = 60.0
_NAMED: Final = [it | {"type": "string"} if it["name"] == "pid" else it for it in FIELDS]


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure both, in turns."""
    count, rounds = (QUICK, 1) if quick else (PEOPLE, ROUNDS)
    rates: dict[str, list[float]] = {name: [] for name in _STREAMS}
    costs: dict[str, list[float]] = {name: [] for name in _STREAMS}
    with KafkaCluster(heap="512m") as cluster, tempfile.TemporaryDirectory() as folder:
        config = _configure(Path(folder), cluster)
        log = KafkaLog(config.kafka)
        tell(f"records of {count} people go into both topics")
        _fill(config, log, count)
        use_keys(config)
        spark = open_session(config.pipeline)
        try:
            tell("warming up")
            _view(spark, config, log, "clear", "warm", count)
            for number in range(rounds):
                for stream in _STREAMS:
                    tell(f"round {number + 1} of {rounds}: {stream}")
                    rate, cost = _view(spark, config, log, stream, f"v{number}", count)
                    rates[stream].append(rate)
                    costs[stream].append(cost)
        finally:
            spark.stop()
    clear, sealed = (statistics.median(rates[name]) for name in _STREAMS)
    return {
        "people": count,
        "rounds": rounds,
        "records_per_second": {name: round(statistics.median(rates[name])) for name in _STREAMS},
        "ratio": round(sealed / clear, 3),
        "ratio_goal": GOAL,
        "cpu_us_per_record": {name: round(min(costs[name]), 2) for name in _STREAMS},
        "cpu_ratio": round(min(costs["clear"]) / min(costs["sealed"]), 3),
        "cpu_us_per_record_first": {name: round(costs[name][0], 2) for name in _STREAMS},
        "cpu_ratio_first": round(costs["clear"][0] / costs["sealed"][0], 3),
    }


def _configure(folder: Path, cluster: KafkaCluster) -> Config:
    given = {
        "store": {"url": f"sqlite:///{folder / 'penstock.db'}"},
        "pipeline": {"batch": BATCH},
    }
    config = Config.model_validate(given, context=folders(folder))
    return config.model_copy(update={"kafka": settings_for(cluster)})


def _fill(config: Config, log: KafkaLog, count: int) -> None:
    """Put the same records into both topics, each of another person, in no order."""
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    for name in _STREAMS:
        log.make_topic(name)
    config.consent.key.read_or_create(lambda: bytes(range(32)))
    producer = log.producer
    with Database.open(config.store.connection_url()) as database:
        keys = PersonKeys(database, config.consent.key.read())
        for at in range(0, count, _PAGE):
            page = numbers[at : at + _PAGE]
            people = [b"p%d" % it for it in page]
            values = [_record(it) for it in page]
            marks, sealed = keys.seal("sealed", people, values, _MOST)
            for person, value, mark, closed in zip(people, values, marks, sealed, strict=True):
                producer.produce("clear", value, key=person)
                producer.produce("sealed", closed, key=mark)
            if producer.flush(_PATIENCE):
                raise AssertionError("Kafka did not take all records")


def _record(number: int) -> bytes:
    return (
        b'{"pid":"p%d","name":"Name%d","zip":"%05d","age":%d,"glucose":%.1f,'
        b'"diagnosis":"E11.%d","note":"a note of the ward, of about forty signs"}'
    ) % (number, number, number % 99_999, number % 90, 4 + number % 90 / 10, number % 9)


def _view(
    spark: SparkSession, config: Config, log: KafkaLog, stream: str, name: str, count: int
) -> tuple[float, float]:
    """Make a view of a whole topic; return records a second, and the CPU of each in µs."""
    body: dict[str, Any] = {"fields": _NAMED, "subject": "pid", "source": "kafka"}
    if stream == "sealed":
        body |= {"erasure": "shred", "from": ["home/+pid/records"]}
    view = f"{stream}-{name}"
    definitions = DefinitionSet.build(
        [
            Document("stream", stream, body),
            Document("view", view, {"stream": stream, "format": "topic", "anonymizers": MASKS}),
        ]
    )
    manager = Manager(spark, config.pipeline, lambda: definitions, kafka=config.kafka)
    manager.control.change(view, "start")
    used = cpu_seconds()
    manager.run_once()
    ended = time.time()
    used = cpu_seconds() - used
    second = list(manager.control.view(view).commits())[SKIPPED // BATCH - 1]
    if sum(1 for _ in log.topic(f"{stream}-{view}").read()) != count:
        raise AssertionError(f"{view} does not hold each record once")
    return (count - SKIPPED) / (ended - second.at / 1000), used / count * 1e6
