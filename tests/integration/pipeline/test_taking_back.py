"""What a view published is taken back, and published again under another definition."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import load
from penstock.eventlog import EventLog
from penstock.pipeline.sinks.commits import TAKING_BACK
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.commands import run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.manager import Manager

pytestmark = pytest.mark.needs("java")

SETTINGS = "pipeline: {interval: 50ms}\n"
STREAM = """\
kind: stream
name: patients
subject: pid
fields:
  - {name: pid, type: int, category: identifier}
  - {name: age, type: int, category: quasi-identifier}
---
"""
EXACT = STREAM + "{kind: view, name: ward, stream: patients, format: FORMAT}\n"
MASKED = STREAM + (
    "{kind: view, name: ward, stream: patients, format: FORMAT, anonymizers: "
    "[{anonymizer: suppression, keys: [pid]}]}\n"
)
GROUPS = STREAM + (
    "{kind: view, name: ward, stream: patients, format: FORMAT, anonymizers: "
    "[{anonymizer: k_anonymization, keys: [pid], k: 2, delta: 10, "
    "quasi_identifiers: [{key: age, min: 0, max: 120}]}]}\n"
)
NOISY = STREAM + (
    "{kind: view, name: ward, stream: patients, window: {size: 1h}, anonymizers: "
    "[{anonymizer: differential_privacy, epsilon: 1, contribution: 1, budget: 5, "
    "aggregates: [{name: patients, mode: count}]}]}\n"
)


class House:
    """An installation in a folder, used by commands; its views run in this process."""

    def __init__(self, spark: SparkSession, folder: Path, form: str) -> None:
        self.folder = folder
        self._spark = spark
        self._form = form
        (folder / "penstock.yaml").write_text(SETTINGS)
        self._settings = load(folder / "penstock.yaml").pipeline

    def penstock(self, *words: str, code: int = 0) -> str:
        done = run_command(self.folder, *words)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def define(self, text: str) -> None:
        (self.folder / "views.yaml").write_text(text.replace("FORMAT", self._form))
        self.penstock("apply", "-f", "views.yaml")

    def feed(self, *ages: int) -> None:
        topic = EventLog(self.folder / "penstock-data" / "eventlog").topic("patients")
        topic.append([json.dumps({"pid": it, "age": it}).encode() for it in ages])

    def manager(self, database: Database) -> Manager:
        from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

        store = CheckedDefinitions(Definitions(database))
        return Manager(self._spark, self._settings, lambda: store.current()[1])

    def run(self) -> None:
        with self._open() as database:
            self.manager(database).run_once()

    @contextmanager
    def running(self) -> Iterator[None]:
        told = threading.Event()
        with self._open() as database:
            thread = threading.Thread(target=self.manager(database).run, args=(told,))
            thread.start()
            try:
                yield
            finally:
                told.set()
                thread.join(120)
                assert not thread.is_alive()

    def _open(self) -> Database:
        return Database.open(f"sqlite:///{self.folder}/penstock-data/penstock.db")

    def published(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.penstock("views", "read", "ward", "--json"))
        return sorted(found, key=str)

    def audited(self, kind: str) -> list[str]:
        told = self.penstock("audit", "tail", "--kind", kind, "--json").splitlines()
        return [json.loads(line)["outcome"] for line in told]


def wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.2)


@pytest.mark.parametrize("form", ["parquet", "topic"])
def test_what_was_published_by_mistake_is_replaced(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    house = House(spark, tmp_path, form)
    house.define(EXACT)
    house.feed(31, 32)
    house.penstock("views", "start", "ward")
    house.run()
    assert house.published() == [{"pid": 31, "age": 31}, {"pid": 32, "age": 32}]
    files = [it for it in (tmp_path / "penstock-data").rglob("*") if it.is_file()]

    house.define(MASKED)
    told = house.penstock("views", "rebuild", "ward", "--yes")
    assert "erased 2 records" in told
    assert "copies that readers made" in told
    assert house.published() == []
    data = tmp_path / "penstock-data" / "views" / "ward"
    assert not [it for it in files if it.exists() and data / "data" in it.parents]
    house.feed(33)
    house.run()
    assert [row["age"] for row in house.published()] == [31, 32, 33]
    assert all("31" not in str(row.get("pid")) for row in house.published())
    assert house.audited("view.erasure") == house.audited("view.rebuilt") == ["done"]


def test_what_was_erased_does_not_come_again(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path, "json")
    house.define(GROUPS)
    house.feed(*range(20, 40))
    house.penstock("views", "start", "ward")
    house.run()
    before = house.published()
    assert before
    held = json.loads(house.penstock("views", "list", "--json"))[0]["held"]
    house.penstock("views", "erase", "ward", "--yes")
    assert house.published() == []
    (row,) = json.loads(house.penstock("views", "list", "--json"))
    assert (row["published"], row["lag"], row["held"], row["wanted"]) == (0, 0, held, "paused")
    house.penstock("views", "resume", "ward")
    house.feed(90, 91)
    house.run()
    house.penstock("views", "stop", "ward")
    house.run()
    after = house.published()
    assert 2 <= len(after) <= held + 2 < len(before)
    assert house.audited("view.erased") == ["done"]
    risk = json.loads(house.penstock("views", "risk", "ward", "--json"))
    assert risk["records"] == len(after)


def test_a_view_that_runs_is_paused_and_begins_anew(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path, "parquet")
    house.define(EXACT)
    house.feed(31)
    house.penstock("views", "start", "ward")
    with house.running():
        wait(lambda: len(house.published()) == 1)
        house.define(MASKED)
        house.penstock("views", "rebuild", "ward", "--yes")
        wait(lambda: [set(it) for it in house.published()] == [set(it) for it in [{"pid", "age"}]])
        assert house.published() != [{"pid": 31, "age": 31}]
        house.penstock("views", "erase", "ward", "--yes")
        assert house.published() == []
        house.feed(32)
        house.penstock("views", "resume", "ward")
        wait(lambda: [it["age"] for it in house.published()] == [32])


def test_nothing_is_taken_back_where_it_could_not_be_published_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path, "parquet")
    house.define(EXACT)
    house.feed(31, 32)
    house.penstock("views", "start", "ward")
    house.run()
    (segment,) = (tmp_path / "penstock-data/eventlog/patients").glob("0*")
    segment.rename(segment.with_name(f"{5:020}{segment.suffix}"))
    said = house.penstock("views", "rebuild", "ward", "--yes", code=3)
    assert "has forgotten the records 0 to 1" in said
    assert len(house.published()) == 2


def test_an_interrupted_command_is_repeated_before_anything_is_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path, "parquet")
    house.define(EXACT)
    house.feed(31)
    house.penstock("views", "start", "ward")
    house.run()
    (tmp_path / "penstock-data/views/ward" / TAKING_BACK).touch()
    house.feed(32)
    house.run()
    assert [it["pid"] for it in house.published()] == [31]
    house.penstock("views", "rebuild", "ward", "--yes")
    house.run()
    assert [it["pid"] for it in house.published()] == [31, 32]


def test_it_is_asked_for_and_noise_is_not_published_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path, "parquet")
    house.define(EXACT)
    assert "nothing was changed" in house.penstock("views", "erase", "ward", code=2)
    assert "there is no view 'other'" in house.penstock("views", "erase", "other", "--yes", code=2)
    house.define(NOISY)
    said = house.penstock("views", "rebuild", "ward", "--yes", code=2)
    assert "differential privacy" in said
    assert "--accept-risk" in said
