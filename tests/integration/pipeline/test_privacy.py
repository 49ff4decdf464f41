"""Differentially private views: the whole way, across restarts, crashes and changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder, ViewWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.views.stream_runner import StreamRunner

pytestmark = pytest.mark.needs("java")

SPENT = "budget spent: its person counts no longer"
FIELDS = [
    {"name": "pid", "type": "string", "category": "identifier"},
    {"name": "ward", "type": "string"},
    {"name": "at", "type": "long"},
]
STREAM = Document("stream", "visits", {"fields": FIELDS, "subject": "pid", "time": "at"})
# So large an epsilon that noise other than zero comes once in 10^43 figures: what is tested
# here is who counts, not the noise.
PRIVATE = {
    "anonymizer": "differential_privacy",
    "aggregates": [{"name": "visits", "mode": "count"}],
    "groups": [{"key": "ward", "values": ["east", "west"]}],
    "epsilon": 100,
    "budget": 200,
}


class House:
    """A stream and one view of it in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.topic = Topic(folder / "log" / "visits")
        self.view = ViewFolder(folder / "views" / "figures")

    def run(self, **more: Any) -> StreamRunner:
        """Bring the view to the end of the stream, as a process of its own would."""
        from penstock.model.kinds import Stream  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415
        from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415
        from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
        from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

        body = {"stream": "visits", "anonymizers": [PRIVATE], "window": {"size": 10}, **more}
        built = DefinitionSet.build([STREAM, Document("view", "figures", body)])
        stream = built.get(Stream, "visits")
        assert stream is not None
        runner = StreamRunner(
            self.spark, stream, TopicSource(self.topic), self.folder / "checkpoint", 1000
        )
        blueprint = Blueprint.find(built, "figures")
        runner.add(ViewRunner(self.spark, blueprint, self.view.folder, bytes(32)))
        runner.catch_up()
        runner.stop()
        return runner

    def visit(self, *visits: tuple[str, str, int]) -> None:
        self.topic.append(
            [json.dumps({"pid": pid, "ward": ward, "at": at}).encode() for pid, ward, at in visits]
        )

    def published(self) -> dict[tuple[int, str], int]:
        """Return the counts by window and ward."""
        rows = [
            row
            for path in sorted(self.view.data.iterdir())
            for row in pyarrow.parquet.read_table(path).to_pylist()
        ]
        found = {}
        for row in rows:
            assert set(row) == {"window_start", "window_end", "ward", "visits"}
            start = (row["window_start"] - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
            key = (round(start * 1000), row["ward"])
            assert key not in found, "a window is published once"
            found[key] = row["visits"]
        return found

    def dead(self) -> dict[int, str]:
        return {letter["offset"]: letter["reason"] for letter in self.view.dead_letters()}


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> House:
    return House(spark, tmp_path)


def test_budgets_last_over_restarts_and_changes(house: House) -> None:
    house.visit(("ann", "east", 1), ("bob", "west", 2), ("ann", "east", 3), ("eve", "south", 4))
    house.visit(("ann", "east", 11))
    assert house.run().failures == {}
    assert house.published() == {(0, "east"): 1, (0, "west"): 1}
    house.visit(("ann", "west", 21), ("bob", "west", 22))
    assert house.run().failures == {}
    # Another role is another definition; what is held is published, and budgets stay.
    house.visit(("bob", "west", 31), ("cid", "east", 31), ("cid", "east", 55))
    assert house.run(roles=["research"]).failures == {}
    assert house.published() == {
        (0, "east"): 1,
        (0, "west"): 1,
        (10, "east"): 1,
        (10, "west"): 0,
        (20, "east"): 0,
        (20, "west"): 1,
        (30, "east"): 1,
        (30, "west"): 0,
        (40, "east"): 0,
        (40, "west"): 0,
    }
    assert house.dead() == {
        2: "contribution bound: enough records of its person count in this window",
        3: "the record belongs to none of the declared groups",
        5: SPENT,
        7: SPENT,
    }
    assert b"ann" not in b"".join(path.read_bytes() for path in house.view.data.iterdir())


def test_a_crash_before_the_commit_publishes_and_charges_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.visit(("ann", "east", 1), ("ann", "east", 11), ("ann", "east", 21))
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise UnavailableError("the disk is full")

        patched.setattr(ViewWriter, "commit", fail)
        assert house.run().failures == {"figures": "the disk is full"}
    assert house.view.last() is None
    assert house.run().failures == {}
    assert house.published() == {
        (start, ward): ward == "east" for start in (0, 10) for ward in ("east", "west")
    }
    assert house.dead() == {}
    house.visit(("bob", "west", 31))
    assert house.run().failures == {}
    assert house.published()[20, "east"] == 0
    assert house.dead() == {2: SPENT}


def test_masks_may_stand_on_both_sides(house: House) -> None:
    upper = {
        "anonymizer": "generalization",
        "keys": ["ward"],
        "generalization_map": {"e": "east"},
        "default": "west",
    }
    rough = {"anonymizer": "bucketizing", "keys": ["visits"], "bucket_size": 5}
    house.visit(("ann", "e", 1), ("bob", "w", 2), ("cid", "w", 3), ("ann", "e", 21))
    runner = house.run(anonymizers=[upper, PRIVATE, rough], format="json")
    assert runner.failures == {}
    rows = [
        json.loads(line)
        for path in sorted(house.view.data.iterdir())
        for line in path.read_text().splitlines()
    ]
    assert [(row["ward"], row["visits"]) for row in rows] == [
        ("east", "[0 - 5]"),
        ("west", "[0 - 5]"),
        ("east", "[0 - 5]"),
        ("west", "[0 - 5]"),
    ]
