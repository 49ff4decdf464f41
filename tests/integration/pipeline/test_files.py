"""Files of a folder become views: as they appear, each record once, and never silently less."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.sinks.commits import ViewFolder, ViewWriter
from penstock.pipeline.sinks.published import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.views.stream_runner import StreamRunner

pytestmark = pytest.mark.needs("java")

FIELDS = [{"name": "n", "type": "int"}, {"name": "name", "type": "string"}]


class House:
    """A stream of files and its views."""

    def __init__(self, spark: SparkSession, folder: Path, form: str) -> None:
        self.spark = spark
        self.folder = folder
        self.source = folder / "in"
        self.source.mkdir()
        source = {"files": {"folder": str(self.source), "format": form}}
        self.stream = Document("stream", "s", {"fields": FIELDS, "source": source})
        self.more: dict[str, Any] = {}

    def run(self, *views: str) -> StreamRunner:
        from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.sources.source import open_source  # noqa: PLC0415
        from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
        from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

        documents = [Document("view", name, {"stream": "s", **self.more}) for name in views]
        definitions = DefinitionSet.build([self.stream, *documents])
        settings = defaults(self.folder, {}).pipeline
        stream = definitions.of(Stream)["s"]
        source = open_source(stream, settings)
        runner = StreamRunner(self.spark, stream, source, self.folder / "checkpoints", 4)
        for name in views:
            blueprint = Blueprint.find(definitions, name)
            folder = self.folder / "views" / name
            view = ViewRunner(self.spark, blueprint, folder, bytes(32), locate=source.locate)
            runner.add(view)
        return runner

    def published(self, view: str) -> list[int]:
        rows = read_published(ViewFolder(self.folder / "views" / view))
        return sorted(row["n"] for row in rows)

    def dead(self, view: str) -> dict[tuple[str, int], str]:
        letters = ViewFolder(self.folder / "views" / view).dead_letters()
        return {(letter["file"], letter["row"]): letter["reason"] for letter in letters}


def test_files_become_views_as_they_appear(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path, "csv")
    (house.source / "a.csv").write_text("n,name\n0,a\n1,b\nx,c\n3,d\n4,e\n")
    runner = house.run("one", "two")
    runner.start(interval=0.1)
    try:
        _wait(lambda: house.published("two") == [0, 1, 3, 4])
        partial = house.source / ".b.csv"
        partial.write_text("n,name\n6,f\n7,g,too many\n")
        partial.rename(house.source / "b.csv")
        _wait(lambda: house.published("two") == [0, 1, 3, 4, 6])
        assert runner.failure is None
    finally:
        runner.stop()
    assert house.published("one") == [0, 1, 3, 4, 6]
    assert house.dead("one") == {
        ("a.csv", 2): "the field 'n' is declared int, and holds something else",
        ("b.csv", 1): "the line has more or fewer cells than the first line",
    }
    # What all have read may go; a view that comes later is told that it is gone.
    (house.source / "a.csv").unlink()
    (house.source / "c [d].csv").write_text("n,name\n8,h\n")
    runner = house.run("one", "late")
    runner.catch_up()
    assert list(runner.failures) == ["late"]
    assert "a.csv' is gone before it was read" in runner.failures["late"]
    assert house.published("one") == [0, 1, 3, 4, 6, 8]
    changed = house.source / "c [d].csv"
    changed.write_text("n,name\n8,h\n9,i\n")
    os.utime(changed, (1, 1))
    runner.catch_up()
    assert "c [d].csv' was changed after" in runner.failures["one"]
    runner.stop()


def test_a_file_that_is_gone_before_it_was_read_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(spark, tmp_path, "csv")
    for number, name in enumerate("ab"):
        (house.source / f"{name}.csv").write_text(f"n,name\n{number},x\n")
    # An older file than those that were read is read, too.
    runner = house.run("one")
    runner.catch_up()
    assert house.published("one") == [0, 1]
    old = house.source / "old.csv"
    old.write_text("n,name\n2,y\n")
    os.utime(old, (1, 1))

    def crash(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(ViewWriter, "stage", crash)
        runner.catch_up()
        assert "one" in runner.failures
    runner.stop()
    old.rename(house.source / ".old")
    runner = house.run("one")
    runner.catch_up()
    assert "old.csv' is gone before it was read" in runner.failures["one"]
    runner.stop()
    (house.source / ".old").rename(old)
    runner = house.run("one")
    runner.catch_up()
    assert runner.failures == {}
    runner.stop()
    assert house.published("one") == [0, 1, 2]


def test_a_view_that_becomes_stateful_goes_on_behind_the_files_it_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path, "csv")
    (house.source / "a.csv").write_text("n,name\n0,x\n1,x\n")
    average = {"anonymizer": "aggregation", "keys": ["n"], "aggregation_mode": "average"}
    mean = {"anonymizers": [average], "window": {"size": "10s"}}
    published: list[float] = [0, 1]
    for name, more, values, made in (
        ("b", mean, (5, 7), (6, 6)),
        ("c", {}, (9,), (9,)),
        ("d", mean, (1, 2), (1.5, 1.5)),
    ):
        runner = house.run("one")
        runner.catch_up()
        assert (runner.failures, house.published("one")) == ({}, sorted(published))
        runner.stop()
        lines = [f"{value},x" for value in values]
        (house.source / f"{name}.csv").write_text("\n".join(["n,name", *lines]))
        house.more = more
        runner = house.run("one")
        runner.catch_up()
        assert (runner.failures, runner.failure) == ({}, None)
        runner.remove("one", flush=True)
        published += made
        assert house.published("one") == sorted(published)


def test_a_view_does_not_go_on_in_another_source(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.errors import UsageError  # noqa: PLC0415

    house = House(spark, tmp_path, "json")
    (house.source / "a.json").write_text(json.dumps({"n": 1, "name": "a"}) + "\n")
    runner = house.run("one")
    runner.catch_up()
    runner.stop()
    assert house.published("one") == [1]
    house.stream = Document("stream", "s", {"fields": FIELDS})
    with pytest.raises(UsageError, match="had another source"):
        house.run("one")


def _wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.1)
