"""Stateful views as queries of Spark: their state is Spark's, and no crash doubles or loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions import DefinitionSet
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder, ViewWriter
from penstock.store.opt_outs import OptOuts, SubjectMarks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.views.stream_runner import StreamRunner
    from penstock.pipeline.views.view_runner import ViewRunner

pytestmark = pytest.mark.needs("java")

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "at", "type": "long"},
]
STREAM = Document("stream", "patients", {"fields": FIELDS, "subject": "pid", "time": "at"})
PURPOSE = Document("purpose", "research", {})
K = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": 3,
    "delta": 10,
}


MARKS = SubjectMarks(bytes(32))


class Crash(Exception):  # noqa: N818 - it stands for a kill, not for an error
    """Ends what runs where a kill would."""


class House:
    """A stream and one k-anonymous view of it in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder / "views" / "research"
        self.checkpoints = folder / "checkpoints"
        self.topic = Topic(folder / "log" / "patients")
        self.opted_out: list[tuple[str, str]] = []

    def open(self, **more: Any) -> StreamRunner:
        """Open the view, as a process of its own would."""
        from penstock.model.kinds import Stream  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415
        from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415
        from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
        from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

        body: dict[str, Any] = {"stream": "patients", "anonymizers": [K], "purposes": ["research"]}
        body["accept_risk"] = ["time:at"]
        view = Document("view", "research", {**body, **more})
        built = DefinitionSet.build([PURPOSE, STREAM, view])
        source = TopicSource(self.topic)
        stream = built.of(Stream)["patients"]
        runner = StreamRunner(self.spark, stream, source, self.checkpoints, 1000)
        blueprint = Blueprint.find(built, "research")
        runner.add(ViewRunner(self.spark, blueprint, self.folder, bytes(32), consent=self._consent))
        return runner

    def _consent(self) -> OptOuts:
        return OptOuts.of(len(self.opted_out), self.opted_out, MARKS)

    def feed(self, runner: StreamRunner, count: int) -> None:
        """Append records and let the view take them in."""
        start = self.topic.next_offset
        numbers = range(start, start + count)
        self.topic.append(
            [json.dumps({"pid": n, "age": 20 + n % 40, "at": n}).encode() for n in numbers]
        )
        runner.catch_up()

    def view(self, runner: StreamRunner) -> ViewRunner:
        assert runner.failures == {}
        found = runner.find("research")
        assert found is not None
        return found

    @property
    def checkpoint(self) -> Path:
        (found,) = self.checkpoints.iterdir()
        return found

    def accounted(self) -> list[int]:
        """Return the records that were published or refused, each as often as it was."""
        published = [
            row["at"]
            for path in sorted((self.folder / "data").iterdir())
            for row in pyarrow.parquet.read_table(path).to_pylist()
        ]
        dead = [letter["offset"] for letter in ViewFolder(self.folder).dead_letters()]
        return sorted(published + dead)

    def refused(self) -> set[int]:
        letters = ViewFolder(self.folder).dead_letters()
        return {letter["offset"] for letter in letters if "opted out" in letter["reason"]}


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> House:
    return House(spark, tmp_path)


def test_the_state_is_in_sparks_state_store_and_bounded(house: House) -> None:
    runner = house.open()
    sizes = []
    for _ in range(6):
        house.feed(runner, 23)
        assert house.view(runner).held <= 10
        sizes.append(sum(it.stat().st_size for it in house.checkpoint.glob("state/**/*.changelog")))
    held, plan = house.view(runner).held, house.view(runner).blueprint.signature
    assert held
    runner.stop()
    reader = house.spark.read.format("statestore").option("path", str(house.checkpoint))
    [kept] = reader.option("stateVarName", "step").load().collect()
    assert (kept["value"]["view"], kept["value"]["definitions"]) == ("research", plan)
    assert kept["value"]["held"] == held
    assert max(sizes[3:]) <= 2 * max(sizes[:3]), "states of the past are removed"
    runner = house.open()
    assert house.view(runner).held == held
    runner.remove("research", flush=True)
    assert house.accounted() == list(range(138))


def _crash(*_: object, **__: object) -> None:
    raise Crash


@pytest.mark.parametrize("when", ["before the commit", "after the commit", "after the place"])
def test_a_crash_neither_doubles_nor_loses(
    when: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415 - loads Spark

    runner = house.open()
    house.feed(runner, 25)
    publish = ViewRunner.publish

    def publish_and_crash(*given: Any) -> None:
        publish(*given)
        raise Crash

    with monkeypatch.context() as patch:
        if when == "before the commit":
            patch.setattr(ViewWriter, "stage", _crash)
        elif when == "after the commit":
            patch.setattr(ViewWriter, "_place", _crash)
        else:
            patch.setattr(ViewRunner, "publish", publish_and_crash)
        house.feed(runner, 25)
        assert "research" in runner.failures
    runner.stop()
    runner = house.open()
    house.feed(runner, 25)
    assert house.view(runner).read == 75
    runner.remove("research", flush=True)
    assert house.accounted() == list(range(75))


def test_a_view_whose_state_is_gone_does_not_go_on(house: House) -> None:
    runner = house.open()
    house.feed(runner, 25)
    assert house.view(runner).held
    runner.stop()
    (house.checkpoint / "state").rename(house.folder / "moved")
    runner = house.open()
    runner.catch_up()
    assert "records back, and they are gone" in runner.failures["research"]
    assert ViewFolder(house.folder).last() is not None


def test_a_view_that_does_not_know_its_place_does_not_go_on(house: House) -> None:
    runner = house.open()
    house.feed(runner, 25)
    runner.stop()
    place = house.folder / "place.json"
    kept = place.read_bytes()
    place.unlink()
    runner = house.open()
    runner.catch_up()
    assert "goes on is not known: its place is gone" in runner.failures["research"]
    runner.stop()
    place.write_bytes(kept)
    runner = house.open()
    house.feed(runner, 25)
    runner.remove("research", flush=True)
    assert house.accounted() == list(range(50))


def test_who_opts_out_between_a_kill_and_the_next_start_is_not_published(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = house.open()
    with monkeypatch.context() as patch:
        patch.setattr(ViewWriter, "stage", _crash)
        house.feed(runner, 30)
        assert "research" in runner.failures
    runner.stop()
    house.opted_out = [(str(number), "research") for number in range(3, 6)]
    runner = house.open()
    runner.catch_up()
    runner.remove("research", flush=True)
    assert house.refused() == {3, 4, 5}
    assert house.accounted() == list(range(30))


def test_who_opts_out_while_held_is_not_published(house: House) -> None:
    runner = house.open()
    house.feed(runner, 25)
    held = house.view(runner).held
    assert held
    last = [str(number) for number in range(25 - held, 25)]
    house.opted_out = [(pid, "research") for pid in last]
    runner.remove("research", flush=True)
    assert house.refused()
    assert house.accounted() == list(range(25))


def test_another_number_of_shards_takes_over_what_was_drained(house: House) -> None:
    wide = {"anonymizers": [{**K, "delta": 40}]}
    runner = house.open(**wide, shards=1)
    house.feed(runner, 90)
    first = house.checkpoint
    assert house.view(runner).held
    runner.stop()
    runner = house.open(**wide, shards=3)
    house.feed(runner, 90)
    assert house.view(runner).read == 180
    assert house.checkpoint != first, "the state has more partitions now"
    runner.remove("research", flush=True)
    assert house.accounted() == list(range(180))
    last = ViewFolder(house.folder).last()
    assert last is not None
    assert last.held == 0
    assert len(last.shards) >= 2
