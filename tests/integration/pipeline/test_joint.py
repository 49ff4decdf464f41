"""Several row-wise views in one pass: each gets what its masks make in Python, record by record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog import Topic
from penstock.masks.mask import Rejected
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.views.stream_runner import StreamRunner

pytestmark = pytest.mark.needs("java")

SECRET = bytes(range(32))
FIELDS = [
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "a.b c", "type": "double", "optional": True},
    {"name": "seen", "type": "timestamp", "optional": True},
]
STREAM = Document("stream", "people", {"fields": FIELDS})
AGES = {
    "anonymizer": "generalization",
    "keys": ["age"],
    "generalization_map": {"1": "young", "2": "young"},
}
VIEWS: dict[str, list[dict[str, Any]]] = {
    "all": [],
    "masked": [
        {"anonymizer": "suppression", "keys": ["name"]},
        {"anonymizer": "noise", "keys": ["age", "a.b c"], "noise": 0.2},
        {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
    ],
    "also_masked": [{"anonymizer": "noise", "keys": ["age"], "noise": 0.2}],
    "some": [
        {"anonymizer": "substitution", "keys": ["name"], "substitution_list": ["x", "y"]},
        AGES,
    ],
    "none": [{**AGES, "generalization_map": {"99": "old"}}],
}
RECORDS: list[dict[str, Any]] = [
    {"name": f"person {n}", "age": n % 5, "a.b c": None if n % 7 == 0 else n / 3} for n in range(50)
]


def _open(spark: SparkSession, folder: Path) -> tuple[StreamRunner, DefinitionSet]:
    from penstock.model.kinds import Stream  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415
    from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
    from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

    documents = [
        Document("view", name, {"stream": "people", "anonymizers": body})
        for name, body in VIEWS.items()
    ]
    known = DefinitionSet.build([STREAM, *documents])
    topic = Topic(folder / "log")
    topic.append([json.dumps(record).encode() for record in RECORDS])
    topic.append([b"no json", json.dumps({"age": 1}).encode()])
    stream = known.of(Stream)["people"]
    runner = StreamRunner(spark, stream, TopicSource(topic), folder / "c", 30)
    for name in VIEWS:
        runner.add(ViewRunner(spark, Blueprint.find(known, name), folder / name, SECRET))
    return runner, known


def _by_name(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def _check(folder: Path, known: DefinitionSet, name: str) -> None:
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark

    chain, _ = Blueprint.find(known, name).chains(SECRET)
    made = {n: chain.apply(record, f"people/{n}") for n, record in enumerate(RECORDS)}
    fine = [row for row in made.values() if not isinstance(row, Rejected)]
    view = ViewFolder(folder / name)
    assert sorted(read_published(view), key=_by_name) == sorted(fine, key=_by_name)
    dead = {letter["offset"]: letter["reason"] for letter in view.dead_letters()}
    assert dead.keys() == {n for n, row in made.items() if isinstance(row, Rejected)} | {50, 51}
    for n, row in made.items():
        if isinstance(row, Rejected):
            assert dead[n] == row.reason
    last = view.last()
    assert last is not None
    assert (last.totals.published, last.totals.rejected) == (len(fine), len(dead))


def test_each_view_gets_what_its_masks_make(spark: SparkSession, tmp_path: Path) -> None:
    runner, known = _open(spark, tmp_path)
    runner.catch_up()
    assert not runner.failures
    runner.stop()
    for name in VIEWS:
        _check(tmp_path, known, name)


def test_a_view_that_fails_does_not_hinder_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, known = _open(spark, tmp_path)

    def refuse() -> None:
        raise UnavailableError("the disk of this view is full")

    monkeypatch.setattr(runner.find("masked"), "branch", refuse)
    runner.catch_up()
    assert runner.failures == {"masked": "the disk of this view is full"}
    runner.stop()
    for name in VIEWS.keys() - {"masked"}:
        _check(tmp_path, known, name)
    assert ViewFolder(tmp_path / "masked").last() is None
