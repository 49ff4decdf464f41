"""A stream of ten million records through one view: whether it stays as fast, and as small.

Method:
- The whole way: log, parsing, k-anonymity, Parquet, commit. Records are appended stretch by
  stretch, and only what the view does with them is timed, as CPU time of all processes.
- 200,000 records go through a view of their own first, so that Java has compiled most.
- Memory is that of the driver: its Python process and Java, each at its peak. Spark's Python
  workers stand beside them; on a cluster they would be elsewhere.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.config.installation import PipelineSettings
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.sources.event_log import TopicSource
from penstock.pipeline.views.stream_runner import StreamRunner
from penstock.pipeline.views.view_runner import ViewRunner
from penstock_lab.bench.patients import SECRET, define, fill
from penstock_lab.bench.processes import cpu_seconds, find_java, peak_mib

GOALS: Final = {"driver_peak_mib": 3 * 1024}
WARM_UP: Final = 200_000


def measure(
    spark: SparkSession, settings: PipelineSettings, *, quick: bool = False
) -> dict[str, Any]:
    """Send a long stream through the k-anonymous view."""
    length = 200_000 if quick else 10_000_000
    _send(spark, settings, "warm-up", [20_000 if quick else WARM_UP])
    # Stretches that end at a tenth of a million, at a million, and at each million more.
    first = length // 100
    ends = [first, *range(length // 10, length + 1, length // 10)]
    spent = _send(spark, settings, "long", ends)
    costs = {
        end: cpu / (end - start) * 1e6
        for start, end, (_, cpu) in zip([0, *ends], ends, spent, strict=False)
    }
    python, java = peak_mib(), peak_mib(find_java())
    return {
        "goals": GOALS,
        "records": length,
        "records_per_second": length / sum(wall for wall, _ in spent),
        "cpu_us_per_record_of_the_stretch_before": costs,
        "growth": costs[length] / costs[first],
        "python_peak_mib": python,
        "java_peak_mib": java,
        "driver_peak_mib": python + java,
    }


def _send(
    spark: SparkSession, settings: PipelineSettings, name: str, ends: list[int]
) -> list[tuple[float, float]]:
    """Append records up to each end, let the view follow, and return its times."""
    known = define()
    topic = EventLog(settings.event_log).topic(name)
    blueprint = Blueprint.find(known, "k_anonymous")
    runner = StreamRunner(
        spark,
        known.of(Stream)["patients"],
        TopicSource(topic),
        settings.folder / f"{name}-checkpoint",
        settings.batch,
    )
    runner.add(ViewRunner(spark, blueprint, settings.folder / name, SECRET))
    spent = []
    for start, end in zip([0, *ends], ends, strict=False):
        fill(topic, end - start, first=start, together=10_000)
        wall, cpu = time.monotonic(), cpu_seconds()
        runner.catch_up()
        if end == ends[-1]:
            runner.remove("k_anonymous", flush=True)
        spent.append((time.monotonic() - wall, cpu_seconds() - cpu))
        if runner.failures:
            raise RuntimeError(json.dumps(runner.failures))
    return spent
