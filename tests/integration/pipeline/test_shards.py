"""Stateful views in shards, as queries of Spark with signals: each run holds all promises."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.model.document import Document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.anonymizers.blueprint import Blueprint

pytestmark = pytest.mark.needs("java")

KEY = bytes(range(32))
STREAM = Document(
    "stream",
    "visits",
    {
        "fields": [
            {"name": "pid", "type": "int", "category": "identifier"},
            {"name": "age", "type": "int", "category": "quasi-identifier"},
            {"name": "pulse", "type": "int"},
            {"name": "at", "type": "long"},
        ],
        "subject": "pid",
        "time": "at",
    },
)
K = 5
GROUPED = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": K,
    "delta": 200,
}
TOTAL = {"anonymizer": "aggregation", "keys": ["pulse"], "aggregation_mode": "sum"}
PRIVATE = {
    "anonymizer": "differential_privacy",
    "aggregates": [{"name": "visits", "mode": "count"}],
    "epsilon": 100,
    "budget": 300,
}
SLOW = "failed to connect back"
TRIES = 8
Record = tuple[int, int, int, int]
RECORDS: list[Record] = [
    (number % 150, number * 7 % 120, number % 50, number // 10) for number in range(1_200)
]
PARSED = (
    "pid",
    "age",
    "pulse",
    "at",
    "place AS `penstock:offset`",
    "CAST(pid AS BIGINT) AS `penstock:person`",
    "CAST(pid AS BIGINT) AS `penstock:subject`",
    "at AS `penstock:time`",
    "CAST(NULL AS STRING) AS `penstock:problem`",
)


def define(*anonymizers: dict[str, Any], **body: Any) -> Blueprint:
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark

    made = {"stream": "visits", "anonymizers": list(anonymizers), **body}
    return Blueprint.find(DefinitionSet.build([STREAM, Document("view", "v", made)]), "v")


class RunningView:
    """A query over two folders: records, and signals; each file a micro-batch with others."""

    def __init__(self, spark: SparkSession, folder: Path, blueprint: Blueprint) -> None:
        from penstock.pipeline.dataframes.view import PARTITIONS, SETTINGS  # noqa: PLC0415

        self.spark = spark.newSession()
        for name, value in {**SETTINGS, PARTITIONS: "2"}.items():
            self.spark.conf.set(name, value)
        self.blueprint = blueprint
        self.records, self.signals = folder / "records", folder / "signals"
        self.checkpoint = folder / "checkpoint"
        self.read = 0
        self.signal()

    def write(self, rows: list[Record]) -> None:
        lines = [(*row, place) for place, row in enumerate(rows, self.read)]
        frame = self.spark.createDataFrame(
            lines, "pid int, age int, pulse int, at long, place long"
        )
        frame.coalesce(1).write.mode("append").parquet(str(self.records))
        self.read += len(rows)

    def signal(self, **told: Any) -> None:
        from penstock.pipeline.dataframes.shards import SIGNALS  # noqa: PLC0415

        row = (0, *(told.get(it) for it in ("opted_out", "erased", "clock", "flush")))
        frame = self.spark.createDataFrame([row], SIGNALS)
        frame.coalesce(1).write.mode("append").parquet(str(self.signals))

    def run(self, shards: int = 2) -> list[Any]:
        """Work off all files that are there; return the rows of all micro-batches."""
        from penstock.pipeline.dataframes.shards import SIGNALS  # noqa: PLC0415
        from penstock.pipeline.dataframes.view import make_view  # noqa: PLC0415

        if not self.records.exists():
            self.write([])
        schema = "pid int, age int, pulse int, at long, place long"
        records = self.spark.readStream.schema(schema).parquet(str(self.records))
        signals = self.spark.readStream.schema(SIGNALS).parquet(str(self.signals))
        made = make_view(
            records.selectExpr(*PARSED), self.blueprint, KEY, shards=shards, signals=signals
        )
        found: list[Any] = []

        def take(batch: DataFrame, _: int) -> None:
            found.extend(batch.collect())

        for attempt in range(TRIES):
            query = (
                made.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(self.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            except Exception as error:
                # On a busy machine, a process of Spark's may take too long to start.
                if SLOW not in str(error) or attempt == TRIES - 1:
                    raise
            else:
                break
        return found

    def forget_last(self) -> None:
        """Do as if Spark had been killed before it noted its last micro-batch."""
        last = max(
            int(it.name) for it in (self.checkpoint / "commits").iterdir() if it.name.isdigit()
        )
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def split(rows: list[Any]) -> tuple[list[Any], dict[int, str], dict[int, Any]]:
    """Return what was published, why the rest was not, and the last report of each shard."""
    reports, refused, published = {}, {}, []
    for row in rows:
        if row["penstock:report"] is not None:
            reports[row["penstock:report"].shard] = row["penstock:report"]
        elif row["penstock:rejected"] is not None:
            refused[row["penstock:offset"]] = row["penstock:rejected"]
        else:
            published.append(row)
    return published, refused, reports


def test_a_k_anonymous_view_goes_on_from_its_checkpoint_and_does_a_batch_again_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.records.opt_outs import REFUSED  # noqa: PLC0415 - loads Spark

    view = RunningView(spark, tmp_path, define(GROUPED, accept_risk=["time:at"]))
    view.write(RECORDS[:500])
    found = view.run()
    view.write(RECORDS[500:900])
    again = view.run()
    # Killed before Spark noted it, from the same state and by the same offsets.
    view.forget_last()
    assert sorted(map(str, view.run())) == sorted(map(str, again))
    found += again
    view.write(RECORDS[900:])
    view.signal(opted_out=[7, 8])
    found += view.run()
    _, refused, reports = split(found)
    assert sum(it.read for it in reports.values()) == 300
    held = sum(it.held for it in reports.values())
    assert 0 < held <= 200
    opted_out = {place for place, record in enumerate(RECORDS) if record[0] in {7, 8}}
    late = {place for place, reason in refused.items() if reason == REFUSED}
    assert {place for place in opted_out if place >= 900} <= late <= opted_out
    view.signal(flush=True)
    found += view.run()
    published, refused, reports = split(found)
    assert not any(it.held for it in reports.values())
    groups = defaultdict(set)
    for row in published:
        groups[row["age"]].add(RECORDS[row["penstock:offset"]][0])
        assert row["pid"] is None
    assert min(map(len, groups.values())) >= K
    assert len(published) > len(RECORDS) / 2
    left = [row["penstock:offset"] for row in published]
    assert sorted([*left, *refused]) == list(range(len(RECORDS)))
    # Drained, it goes on under other definitions; before, it would not.
    view.blueprint = define({**GROUPED, "k": 2}, accept_risk=["time:at"])
    view.write(RECORDS[:50])
    assert sum(it.held for it in split(view.run())[2].values()) == 48
    view.write(RECORDS[:50])
    view.blueprint = define(GROUPED, accept_risk=["time:at"])
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        view.run()
    from penstock.pipeline.dataframes.shard_step import told_by  # noqa: PLC0415 - loads Spark

    assert "state of other definitions" in (told_by(caught.value) or "")


def test_windows_of_two_shards_are_whole_and_leave_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    view = RunningView(spark, tmp_path, define(TOTAL, window={"size": 20}))
    published = []
    for first in range(0, len(RECORDS), 300):
        view.write(RECORDS[first : first + 300])
        published += split(view.run())[0]
    view.signal(flush=True)
    published += split(view.run())[0]
    totals: dict[int, int] = defaultdict(int)
    for record in RECORDS:
        totals[record[3] // 20] += record[2]
    assert sorted(row["penstock:offset"] for row in published) == list(range(len(RECORDS)))
    assert all(row["pulse"] == totals[row["at"] // 20] for row in published)


def test_figures_of_two_shards_have_noise_once_and_budgets_outlive_a_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    view = RunningView(spark, tmp_path, define(PRIVATE, window={"size": 20}))
    view.write(RECORDS)
    view.signal(flush=True)
    published, refused, reports = split(view.run())
    # 120 moments are six windows; each person pays for three of them.
    assert len(reports) == 2
    figures = [row["visits"] for row in sorted(published, key=lambda row: row["penstock:window"])]
    assert figures == pytest.approx([150, 150, 150, 0, 0, 0], abs=2)
    assert set(refused.values()) == {
        "budget spent: its person counts no longer",
        "contribution bound: enough records of its person count in this window",
    }
    view.blueprint = define({**PRIVATE, "budget": 400}, window={"size": 20})
    view.write([(person, 1, 1, 500 + person) for person in range(30)])
    view.write([(person, 1, 1, 520 + person) for person in range(30)])
    view.signal(flush=True)
    published, refused, _ = split(view.run())
    assert sum(row["visits"] for row in published) == pytest.approx(30, abs=4)
    assert set(refused.values()) == {"budget spent: its person counts no longer"}
