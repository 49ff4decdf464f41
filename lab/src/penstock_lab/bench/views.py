"""Windowed and k-anonymous views from Kafka to Kafka, in the set-ups of the thesis on DASH.

Method:
- One broker of the development cluster and Spark on two cores of this machine, on loopback. A
  topic of one partition holds made-up patients as JSON; 20 records have the time of each
  millisecond, which is about what the thesis's prototype passed without anonymizers.
- `baseline` passes records on; `window_N` puts the average of `age` over windows of N ms in the
  place of each age; `k_anonymous` is the thesis's default: k = 100, δ = 20,000, μ = 100, β = 50,
  identifiers suppressed, four numeric quasi-identifiers with buckets, two with hierarchies.
- The pipeline as it runs: each view reads the topic from the beginning and writes its own,
  exactly once. Views take turns within a round, the first round does not count. The first two
  batches of each do not count either: the view opens, and Spark makes its plan.
- Rates are wall-clock rates, medians of the rounds. `cpu_us_per_record` is what all processes
  used, over whole rounds, the least of them; ratios are taken of these.
- `held`: records of windows that are not over, and those that still wait for their group.
- `prototype_per_second` is read off the metrics that the thesis's author published, of a server.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from penstock.pipeline.manager import Manager
from penstock.pipeline.session import open_session
from penstock_lab.bench.kafka.copy import settings_for
from penstock_lab.bench.patients import FIELDS
from penstock_lab.bench.processes import cpu_seconds
from penstock_lab.bench.progress import tell
from penstock_lab.bench.tables import Table, show
from penstock_lab.generate.hospital import GENDERS, generate
from penstock_lab.generate.words import INSURERS
from penstock_lab.generate.writers import to_json_lines

RECORDS: Final = 400_000
BATCH: Final = 50_000
SKIPPED: Final = 2
"""Batches of a view that do not count."""
ROUNDS: Final = 3
PER_MILLISECOND: Final = 20
FLUSHED: Final = 50_000
PATIENCE: Final = 60.0
WINDOWS: Final = (5, 10, 25, 50, 100, 150, 200, 500)
K: Final = 100
DELTA: Final = 20_000
PROTOTYPE: Final = {"baseline": "17,000 to 19,000", "window_25": "50 to 67", "k_anonymous": "115"}
IN_TABLES: Final = ("views",)
_KINDS: Final = ("substitute", "regional", "company", "guild", "rural")


def make_k_anonymization() -> dict[str, Any]:
    """Return the thesis's default set-up, with the insurers and genders of our generator."""
    codes = [str(code) for code, _ in INSURERS]
    insurers = [
        {"value": kind, "children": [{"value": code} for code in codes[at :: len(_KINDS)]]}
        for at, kind in enumerate(_KINDS)
    ]
    genders = [{"value": gender} for gender in GENDERS]
    return {
        "anonymizer": "k_anonymization",
        "keys": ["pid", "name", "address", "phone", "insurance_number"],
        "quasi_identifiers": [
            {"key": "zip", "bucket_size": 500, "min": 0, "max": 99_999},
            {"key": "age", "bucket_size": 3, "min": 0, "max": 100},
            {"key": "height", "bucket_size": 5, "min": 0, "max": 225},
            {"key": "weight", "bucket_size": 5, "min": 0, "max": 300},
            {"key": "gender", "hierarchy": {"value": "any", "children": genders}},
            {"key": "insurance_company", "hierarchy": {"value": "insurer", "children": insurers}},
        ],
        "k": K,
        "delta": DELTA,
        "mu": 100,
        "beta": 50,
    }


def make_views() -> dict[str, dict[str, Any]]:
    """Return the views by name."""
    average = {"anonymizer": "aggregation", "keys": ["age"], "aggregation_mode": "average"}
    windowed = {
        f"window_{size}": {"anonymizers": [average], "window": {"size": size}} for size in WINDOWS
    }
    return {
        "baseline": {},
        **windowed,
        "k_anonymous": {"anonymizers": [make_k_anonymization()]},
    }


def define(name: str, number: int, body: Mapping[str, Any]) -> DefinitionSet:
    """Return the definitions of one view in one round, and of its stream."""
    fields = [it | {"type": "string"} if it["name"] == "insurance_company" else it for it in FIELDS]
    stream = {"fields": fields, "subject": "pid", "source": "kafka"}
    view = {"stream": "patients", "format": "topic", **body}
    return DefinitionSet.build(
        [Document("stream", "patients", stream), Document("view", f"{name}-{number}", view)]
    )


def fill(log: KafkaLog, count: int, began: int) -> None:
    """Put patients into the topic, so many in each millisecond."""
    log.make_topic("patients")
    producer = log.producer
    place = 0
    for block in generate(count):
        at = block.schema.get_field_index("insurance_company")
        text = block.column(at).cast(pa.string())
        columns = [text if number == at else it for number, it in enumerate(block.columns)]
        written = pa.RecordBatch.from_arrays(columns, names=block.schema.names)
        lines = to_json_lines(written).to_pylist()
        for line in lines:
            if not place % FLUSHED:
                producer.flush(PATIENCE)
            moment = began + place // PER_MILLISECOND
            producer.produce("patients", line, timestamp=moment)
            place += 1
    if producer.flush(PATIENCE):
        raise AssertionError("Kafka did not take all records")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all views, in turns."""
    count, rounds, batch = (40_000, 1, 10_000) if quick else (RECORDS, ROUNDS, BATCH)
    views = make_views()
    if quick:
        views = {name: views[name] for name in ("baseline", "window_5", "k_anonymous")}
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in views}
    with KafkaCluster(heap="512m") as cluster, tempfile.TemporaryDirectory() as folder:
        settings = settings_for(cluster)
        spark = open_session(defaults(Path(folder), {}).pipeline)
        try:
            log = KafkaLog(settings)
            tell(f"{count} records go into the topic")
            fill(log, count, int(time.time() * 1000) - count // PER_MILLISECOND)
            # The first round of each warms up, and does not count.
            for number in range(rounds + 1):
                for name, body in views.items():
                    tell(f"round {number} of {rounds}: {name}")
                    found = _measure(spark, Path(folder), log, (name, number), body, batch, count)
                    if number:
                        timed[name].append(found)
        finally:
            spark.stop()
    return {
        "records": count,
        "rounds": rounds,
        "batch": batch,
        "views": summarize(timed),
    }


def _measure(
    spark: SparkSession,
    folder: Path,
    log: KafkaLog,
    named: tuple[str, int],
    body: Mapping[str, Any],
    batch: int,
    count: int,
) -> dict[str, float]:
    """Make a view of the whole topic; return rate, CPU time per record, and what came out."""
    definitions = define(*named, body)
    name = f"{named[0]}-{named[1]}"
    settings = defaults(folder, {}).pipeline.model_copy(update={"batch": batch})
    manager = Manager(spark, settings, lambda: definitions, kafka=log.settings)
    manager.control.change(name, "start")
    used = cpu_seconds()
    manager.run_once()
    ended = time.time()
    used = cpu_seconds() - used
    begun = list(manager.control.view(name).commits())[SKIPPED - 1]
    published = sum(1 for _ in log.topic(f"patients-{name}").read())
    if published > count or count - published > most_held(named[0], count):
        raise AssertionError(f"{name} published {published} of {count} records")
    return {
        "per_second": (count - SKIPPED * batch) / (ended - begun.at / 1000),
        "cpu_us": used / count * 1e6,
        "published": published,
        "held": count - published,
    }


def most_held(name: str, count: int) -> int:
    """Return how many records a view may still hold when it has read all."""
    if name == "k_anonymous":
        return min(count, DELTA)
    size = int(name.rpartition("_")[2]) if name.startswith("window_") else 0
    # The window at hand, and what came in the same millisecond.
    return (size + 1) * PER_MILLISECOND if size else 0


def summarize(timed: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each view, and what it costs beside the baseline."""
    costs = {name: min(it["cpu_us"] for it in found) for name, found in timed.items()}
    return {
        name: {
            "records_per_second": round(statistics.median(it["per_second"] for it in found)),
            "cpu_us_per_record": round(costs[name], 2),
            "cpu_of_baseline": round(costs[name] / costs["baseline"], 3),
            "published": found[-1]["published"],
            "held": found[-1]["held"],
            "prototype_per_second": PROTOTYPE.get(name, ""),
        }
        for name, found in timed.items()
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return one table of all views."""
    rows = [
        (
            name,
            show(it["records_per_second"], 0),
            show(it["cpu_us_per_record"], 1),
            show(it["cpu_of_baseline"], 2),
            show(it["held"], 0),
            it["prototype_per_second"],
        )
        for name, it in figures["views"].items()
    ]
    columns = ("view", "records/s", "CPU µs/record", "of baseline", "held", "prototype/s")
    return [Table(f"Kafka to Kafka, {figures['records']:,} records", columns, rows)]
