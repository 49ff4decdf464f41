"""Stateful steps as queries of their own: their state is Spark's, and no crash doubles or loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import Batch, ViewFolder, ViewWriter
from penstock.store.opt_outs import OptOuts, SubjectMarks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        self.topic = Topic(folder / "log" / "patients")
        self.opted_out: list[tuple[str, str]] = []

    def open(self) -> ViewRunner:
        """Open the view, as a process of its own would."""
        from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

        body: dict[str, Any] = {"stream": "patients", "anonymizers": [K], "purposes": ["research"]}
        body["accept_risk"] = ["time:at"]
        built = DefinitionSet.build([PURPOSE, STREAM, Document("view", "research", body)])
        blueprint = Blueprint.find(built, "research")
        view = ViewRunner(self.spark, blueprint, self.folder, bytes(32), consent=self._consent)
        view.open()
        return view

    def _consent(self) -> OptOuts:
        return OptOuts.of(len(self.opted_out), self.opted_out, MARKS)

    def feed(self, view: ViewRunner, count: int) -> None:
        """Append records and let the view take them in."""
        start = self.topic.next_offset
        numbers = range(start, start + count)
        self.topic.append(
            [json.dumps({"pid": n, "age": 20 + n % 40, "at": n}).encode() for n in numbers]
        )
        self.take(view)

    def take(self, view: ViewRunner) -> None:
        """Let the view take in what it does not have yet."""
        from penstock.pipeline.records.columns import OFFSET  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.records.parser import parse_records  # noqa: PLC0415
        from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415

        raw = TopicSource(self.topic).read(self.spark)
        new = raw.where(raw[f"`{OFFSET}`"] >= self.reached(view))
        view.ask()
        batch = Batch("c", view.batch.number + 1, str(self.topic.next_offset))
        view.process(parse_records(new, view.blueprint.stream), batch)

    @staticmethod
    def reached(view: ViewRunner) -> int:
        return int(view.batch.place or 0)

    def accounted(self) -> list[int]:
        """Return the records that were published or refused, each as often as it was."""
        published = [
            row["at"]
            for path in sorted((self.folder / "data").iterdir())
            for row in pyarrow.parquet.read_table(path).to_pylist()
        ]
        dead = [letter["offset"] for letter in ViewFolder(self.folder).dead_letters()]
        return sorted(published + dead)


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> House:
    return House(spark, tmp_path)


def test_the_state_is_in_sparks_state_store_and_bounded(house: House) -> None:
    view = house.open()
    sizes = []
    for _ in range(6):
        house.feed(view, 23)
        assert view.held <= 10
        sizes.append(sum(path.stat().st_size for path in house.folder.glob("steps/**/*.changelog")))
    held = view.held
    assert held
    view.close()
    checkpoint = house.folder / "steps" / "checkpoint"
    reader = house.spark.read.format("statestore").option("path", str(checkpoint))
    [kept] = reader.option("stateVarName", "step").load().collect()
    assert kept["value"]["plan"] == view.blueprint.signature
    assert len(kept["value"]["step"]) > 0
    assert max(sizes[3:]) <= 2 * max(sizes[:3]), "states of the past are removed"
    assert not any((house.folder / "steps" / "rows").iterdir()), "no row stays behind"
    again = house.open()
    assert again.held == held
    again.flush()
    again.close()
    assert house.accounted() == list(range(138))


@pytest.mark.parametrize("when", ["before the commit", "after the commit", "after the place"])
def test_a_crash_neither_doubles_nor_loses(
    when: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = house.open()
    house.feed(view, 25)

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        if when == "before the commit":
            patch.setattr(ViewWriter, "stage", crash)
        elif when == "after the commit":
            patch.setattr(ViewWriter, "_place", crash)
        else:
            patch.setattr("penstock.pipeline.views.operator.commands.CommandFolder.clear", crash)
        with pytest.raises(Crash):
            house.feed(view, 25)
    view.close()
    view = house.open()
    assert house.reached(view) == 50
    house.feed(view, 25)
    view.flush()
    view.close()
    assert house.accounted() == list(range(75))


def test_a_view_whose_state_is_gone_does_not_go_on(house: House) -> None:
    view = house.open()
    house.feed(view, 25)
    assert view.held
    view.close()
    (house.folder / "steps").rename(house.folder / "moved")
    with pytest.raises(UnavailableError, match="records back, and they are gone"):
        house.open()
    assert ViewFolder(house.folder).last() is not None


def test_who_opts_out_between_a_kill_and_the_next_start_is_not_published(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = house.open()

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(ViewWriter, "stage", crash)
        with pytest.raises(Crash):
            house.feed(view, 30)
    view.close()
    house.opted_out = [(str(number), "research") for number in range(3, 6)]
    view = house.open()
    view.flush()
    view.close()
    refused = {
        letter["offset"]
        for letter in ViewFolder(house.folder).dead_letters()
        if "opted out" in letter["reason"]
    }
    assert refused == {3, 4, 5}
    assert house.accounted() == list(range(30))


def test_who_opts_out_while_held_is_not_published(house: House) -> None:
    view = house.open()
    house.feed(view, 25)
    held = view.held
    assert held
    last = [str(number) for number in range(25 - held, 25)]
    house.opted_out = [(pid, "research") for pid in last]
    view.flush()
    view.close()
    refused = {
        letter["offset"]
        for letter in ViewFolder(house.folder).dead_letters()
        if "opted out" in letter["reason"]
    }
    assert refused
    assert house.accounted() == list(range(25))
