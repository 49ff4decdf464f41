"""How a k-anonymous view scales with the cores of a standalone cluster.

Method:
- A standalone cluster of one worker, and then one of two, each with one core, and a driver beside
  them. The same records go from a fresh view to all published; the time of the best round counts.
- `serial` is what a second core does not make less, by the times of one and of two: a record takes
  serial + parallel / cores. What 8 and 64 cores would do is calculated so, and not measured here.
- The driver and both workers share the machine. With fewer cores than workers + 1, or other work on
  it, the second worker gets less than a core: `load` in the figures tells.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.components.clusters import SparkCluster
from penstock.config import defaults
from penstock.config.installation import PipelineSettings
from penstock.eventlog import EventLog, Topic
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.session import open_session
from penstock.pipeline.sources.event_log import TopicSource
from penstock.pipeline.views.stream_runner import StreamRunner
from penstock.pipeline.views.view_runner import ViewRunner
from penstock_lab.bench.patients import SECRET, define, fill
from penstock_lab.bench.processes import cpu_seconds

GOALS: Final = {"two_workers_to_one": 1.6}
WORKERS: Final = (1, 2)
CALCULATED: Final = (8, 64)
WARM_UP: Final = 2
MICRO: Final = 1e6


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure a k-anonymous view on one and on two single-core workers."""
    rows, rounds = (20_000, 1) if quick else (400_000, 3)
    times: dict[int, float] = {}
    cpu: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made:
        folder = Path(made)
        settings = defaults(folder, {}).pipeline
        topic = EventLog(settings.event_log).topic("patients")
        fill(topic, rows)
        for workers in WORKERS:
            home = folder / f"cluster-{workers}"
            home.mkdir()
            with SparkCluster(home, workers=workers, memory="1g") as cluster:
                given = settings.model_copy(
                    update={"master": cluster.url, "folder": folder / f"views-{workers}"}
                )
                spark = open_session(given, cores=workers)
                try:
                    found = [
                        _measure(spark, given, topic, number) for number in range(WARM_UP + rounds)
                    ][WARM_UP:]
                finally:
                    spark.stop()
            times[workers] = min(wall for wall, _ in found) / rows * MICRO
            cpu[workers] = min(used for _, used in found) / rows * MICRO
    return {
        "goals": GOALS,
        "rows": rows,
        "load": os.getloadavg()[0],
        "us_per_record": times,
        "cpu_us_per_record": cpu,
        "records_per_second": {it: MICRO / us for it, us in times.items()},
        "two_workers_to_one": times[1] / times[2],
        **calculate(times[1], times[2]),
    }


def calculate(one: float, two: float) -> dict[str, Any]:
    """Return what more cores would do, by the time per record with one and with two."""
    serial = min(one, max(0.0, 2 * two - one))
    parallel = one - serial
    return {
        "serial_us_per_record": serial,
        "parallel_us_per_record": parallel,
        "calculated_records_per_second": {
            cores: MICRO / (serial + parallel / cores) for cores in CALCULATED
        },
        "calculated_limit": MICRO / serial if serial else None,
    }


def _measure(
    spark: SparkSession, settings: PipelineSettings, topic: Topic, number: int
) -> tuple[float, float]:
    """Return the time and the CPU time from an empty view to all records published."""
    known = define()
    place = settings.folder / str(number)
    runner = StreamRunner(
        spark, known.of(Stream)["patients"], TopicSource(topic), place / "c", settings.batch
    )
    blueprint = Blueprint.find(known, "k_anonymous")
    runner.add(ViewRunner(spark, blueprint, place / "view", SECRET))
    wall, cpu = time.monotonic(), cpu_seconds()
    runner.catch_up()
    if runner.failures:
        raise RuntimeError(str(runner.failures))
    view = runner.find("k_anonymous")
    if view is None or view.read != topic.next_offset:
        raise RuntimeError(f"the view did not take all records in: {runner.failure}")
    spent = time.monotonic() - wall, cpu_seconds() - cpu
    runner.stop()
    return spent
