"""How fast streams become views.

Method:
- Made-up patients are fed into an event log once. Each figure goes from an empty view to all
  records published and committed, on the machine's own Spark session (local[2]).
- Views take turns within a round, so that a slow moment falls on all of them, and a figure
  is the best of its rounds. Ratios compare CPU time per record, of the driver, Java and
  Spark's Python workers together, since other work on the machine changes it less.
- A view takes a thousand records in before its time is taken: a stream runs for long, and how
  long a query takes to start is not how fast it is.
- The stateful steps are measured by themselves too, on arrays in memory, without Spark. A
  step's time per record must not grow with the stream.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.config import defaults
from penstock.config.installation import PipelineSettings
from penstock.definitions.anonymizers import Aggregation
from penstock.definitions.k_anonymity import KAnonymization
from penstock.eventlog import EventLog, Topic
from penstock.masks.fields import Field
from penstock.model.kinds import Stream
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import KAnonymityStep
from penstock.pipeline.anonymizers.stateful import StatefulStep
from penstock.pipeline.anonymizers.windows import WindowStep
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema
from penstock.pipeline.session import open_session
from penstock.pipeline.sources.event_log import TopicSource
from penstock.pipeline.views.stream_runner import StreamRunner
from penstock.pipeline.views.view_runner import ViewRunner
from penstock_lab.bench import anonymity, long_stream
from penstock_lab.bench.patients import SECRET, VIEWS, define, fill
from penstock_lab.bench.processes import cpu_seconds, peak_mib

GOALS: Final = {
    "masked_to_pass_through": 0.9,
    "four_views_to_one": 2.0,
    "window_records_per_second": 50_000,
    "k_anonymity_records_per_second": 20_000,
}
WARM_UP: Final = 3
FIRST: Final = 1_000
INTERVAL: Final = 0.001
POLL: Final = 0.005
SIX: Final = tuple(f"q{number}" for number in range(6))


def run(*, quick: bool = False, data: str | None = None, large: bool = False) -> dict[str, Any]:
    """Measure views on Spark, and stateful steps by themselves.

    `data` names the Adult records, to compare the loss of k-anonymity with published figures;
    `large` sends ten million records through a view.
    """
    rows, rounds = (20_000, 1) if quick else (200_000, 3)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        settings = defaults(Path(folder), {}).pipeline
        topic = EventLog(settings.event_log).topic("patients")
        # The first records have a file of their own: the others, in a new one, can be put aside.
        small = Topic(topic.folder, segment=1)
        fill(small, FIRST, together=FIRST)
        fill(small, FIRST // 2, first=FIRST)
        begun = FIRST + FIRST // 2
        fed = (rows - begun) / fill(topic, rows - begun, first=begun)
        spark = open_session(settings)
        try:
            views = _measure_views(spark, settings, topic, rows, rounds)
            long = long_stream.measure(spark, settings, quick=quick) if large else None
        finally:
            spark.stop()
    rates = {name: max(rate for rate, _ in found) for name, found in views.items()}
    cost = {name: min(cpu for _, cpu in found) for name, found in views.items()}
    return {
        "goals": GOALS,
        "rows": rows,
        "feed_records_per_second": fed,
        "records_per_second": rates,
        "cpu_us_per_record": cost,
        "value_based_to_pass_through": cost["pass_through"] / cost["value_based"],
        "tuple_based_to_pass_through": cost["pass_through"] / cost["tuple_based"],
        "four_views_to_one": cost["four_views"] / cost["pass_through"],
        "steps": _measure_steps(quick=quick),
        "long_stream": long or {"missing": "--large sends ten million records"},
        "adult": (
            anonymity.measure_adult(Path(data), quick=quick)
            if data
            else {"missing": "--data names no file with the Adult records"}
        ),
        "driver_peak_mib": peak_mib(),
    }


def _measure_views(
    spark: SparkSession, settings: PipelineSettings, topic: Topic, rows: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return for each view, round by round, records per second and CPU time per record."""
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in VIEWS}
    groups["four_views"] = ("pass_through", "value_based", "tuple_based", "four")
    known = define()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
    stream = known.of(Stream)["patients"]
    aside = settings.folder / "aside"
    aside.mkdir(parents=True)
    # Rounds that do not count: Java compiles what it runs often, and a stream runs for long.
    for number in range(WARM_UP + rounds):
        for name, members in groups.items():
            files = sorted(topic.folder.glob("[0-9]*.log"))[1:]
            for path in files:
                path.rename(aside / path.name)
            runner = StreamRunner(
                spark, stream, TopicSource(topic), settings.folder / "c", settings.batch
            )
            for member in members:
                blueprint = Blueprint.find(known, member)
                runner.add(ViewRunner(spark, blueprint, settings.folder / member, SECRET))
            runner.start(INTERVAL)
            _wait_for(runner, members, FIRST)
            started, used = time.monotonic(), cpu_seconds()
            for path in files:
                (aside / path.name).rename(path)
            _wait_for(runner, members, rows)
            for member in members:
                runner.remove(member, flush=True)
            seconds = time.monotonic() - started
            runner.stop()
            if number >= WARM_UP:
                timed = rows - FIRST
                found[name].append((timed / seconds, (cpu_seconds() - used) / timed * 1e6))
            for member in members:
                shutil.rmtree(settings.folder / member)
    return found


def _wait_for(runner: StreamRunner, members: Sequence[str], rows: int) -> None:
    """Wait until all views have so many records; a view that fails ends the measurement."""
    while True:
        if runner.failures:
            raise RuntimeError(json.dumps(runner.failures))
        views = [runner.find(member) for member in members]
        if all(view is not None and view.read >= rows for view in views):
            return
        time.sleep(POLL)


def _measure_steps(*, quick: bool) -> dict[str, Any]:
    """Feed stateful steps from memory, and see whether time per record stays the same."""
    sizes = (20_000, 100_000) if quick else (100_000, 1_000_000)
    figures: dict[str, Any] = {}
    for name, make in (("windows", _make_window_step), ("k_anonymity", _make_k_step)):
        rates = {size: _time_step(make(), size) for size in sizes}
        figures[name] = {"records_per_second": rates, "growth": rates[sizes[0]] / rates[sizes[1]]}
    return figures


def _make_window_step() -> StatefulStep:
    anonymizer = Aggregation.model_validate({"keys": ["q0"], "aggregation_mode": "average"})
    schema = {name: Field.of("double") for name in SIX}
    return WindowStep(Window(size=25), [anonymizer], schema, by_arrival=False, secret=SECRET)


def _make_k_step() -> StatefulStep:
    parameters = KAnonymization.model_validate(
        {
            "quasi_identifiers": [{"key": name, "min": 0, "max": 1} for name in SIX],
            "k": 100,
            "delta": 10_000,
        }
    )
    return KAnonymityStep(parameters, {name: Field.of("double") for name in SIX}, {}, 0)


def _time_step(step: StatefulStep, size: int, batch: int = 50_000) -> float:
    draw = np.random.default_rng(0)
    schema = arrow_schema({name: Field.of("double") for name in SIX}, OFFSET, PERSON, TIME, SUBJECT)
    seconds = 0.0
    for start in range(0, size, batch):
        count = min(batch, size - start)
        offsets = np.arange(start, start + count)
        numbers = (*(draw.random(count) for _ in SIX), offsets, offsets, offsets // 50, offsets)
        table = pa.table([pa.array(column) for column in numbers], schema=schema)
        started = time.thread_time()
        step.feed(table, 0)
        step.save()
        seconds += time.thread_time() - started
    return size / seconds
