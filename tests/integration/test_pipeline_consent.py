"""A person who opted out of a view's purpose is not in it, whatever the view does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.pipeline.consent import REFUSED, OptOuts
from penstock.pipeline.control import Control
from penstock.pipeline.reading import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

STREAM = {
    "fields": [{"name": "pid", "type": "int"}, {"name": "age", "type": "int"}],
    "subject": "pid",
}
GROUPED = [
    {
        "anonymizer": "k_anonymization",
        "keys": [],
        "k": 2,
        "delta": 4,
        "quasiIdentifiers": [{"key": "age", "min": 0, "max": 100}],
    }
]


def view(name: str, purpose: str, **more: Any) -> Document:
    return Document("view", name, {"stream": "s", "purposes": [purpose], **more})


DEFINITIONS = DefinitionSet.build(
    [
        Document("stream", "s", STREAM),
        view("care", "care"),
        view("research", "research/cancer"),
        view("lines", "research", format="json"),
        view("grouped", "research", anonymizers=GROUPED),
    ]
)
VIEWS = ("care", "research", "lines", "grouped")


def test_who_opted_out_is_left_out_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(tmp_path, {}).pipeline
    topic = EventLog(settings.event_log).topic("s")
    control = Control(settings.folder)
    now = OptOuts()

    def feed_and_run(*pids: int) -> None:
        topic.append([json.dumps({"pid": pid, "age": pid}).encode() for pid in pids])
        for action in ("start", "stop"):
            for name in VIEWS:
                control.change(name, action)
            Manager(spark, settings, lambda: DEFINITIONS, consent=lambda: now).run_once()

    def published(name: str) -> list[int]:
        return sorted(row["pid"] for row in read_published(control.view(name)))

    feed_and_run(1, 2, 3)
    assert {name: published(name) for name in VIEWS} == {it: [1, 2, 3] for it in VIEWS}
    now = OptOuts.of(7, [("2", "research"), ("3", "marketing")])
    feed_and_run(1, 2, 3)
    assert published("care") == [1, 1, 2, 2, 3, 3]
    for name in ("research", "lines", "grouped"):
        assert published(name) == [1, 1, 2, 3, 3], name
        assert list(control.view(name).dead_letters()) == [{"offset": 4, "reason": REFUSED}]
        last = control.view(name).last()
        assert last is not None
        assert (last.totals.read, last.totals.published, last.totals.rejected) == (6, 5, 1)


def test_nothing_is_published_while_opt_outs_are_not_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    def unknown() -> OptOuts:
        raise UnavailableError("the store is away")

    settings = defaults(tmp_path, {}).pipeline
    EventLog(settings.event_log).topic("s").append([b'{"pid": 1, "age": 1}'])
    manager = Manager(spark, settings, lambda: DEFINITIONS, consent=unknown)
    manager.control.change("care", "start")
    manager.run_once()
    assert list(read_published(manager.control.view("care"))) == []
    condition = manager.control.condition("care")
    assert condition is not None
    assert "the store is away" in (condition.error or "")
