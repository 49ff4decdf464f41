"""Streams become views: the whole way from the log to the files that count."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions import DefinitionSet
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.views.stream_runner import StreamRunner
    from penstock.pipeline.views.view_runner import ViewRunner

pytestmark = pytest.mark.needs("java")

SECRET = bytes(range(32))
FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "gluc.", "type": "float", "optional": True, "category": "sensitive"},
    {"name": "at", "type": "long"},
]
STREAM = Document("stream", "patients", {"fields": FIELDS, "subject": "pid", "time": "at"})
SUPPRESS = {"anonymizer": "suppression", "keys": ["pid", "name"]}
BUCKETS = {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10}
NOISE = {"anonymizer": "noise", "keys": ["gluc."], "noise": 0.1}
K = {
    "anonymizer": "k_anonymization",
    "keys": ["pid", "name"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": 3,
    "delta": 10,
}
RESEARCH = {"anonymizers": [K], "accept_risk": ["time:at"]}
AVERAGE = {"anonymizer": "aggregation", "keys": ["age"], "aggregation_mode": "average"}


class House:
    """A stream and its views in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.topic = Topic(folder / "log" / "patients")

    def define(self, stream: Document = STREAM, **views: dict[str, Any]) -> DefinitionSet:
        documents = [
            Document("view", name, {"stream": "patients", **body}) for name, body in views.items()
        ]
        return DefinitionSet.build([stream, *documents])

    def view(self, definitions: DefinitionSet, name: str) -> ViewRunner:
        from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

        blueprint = Blueprint.find(definitions, name)
        return ViewRunner(self.spark, blueprint, self.folder / "views" / name, SECRET)

    def stream(self, definitions: DefinitionSet, *names: str, rows: int = 1000) -> StreamRunner:
        from penstock.model.kinds import Stream  # noqa: PLC0415
        from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415 - loads Spark
        from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415 - loads Spark

        stream = definitions.get(Stream, "patients")
        assert stream is not None
        checkpoint = self.folder / "checkpoint"
        runner = StreamRunner(self.spark, stream, TopicSource(self.topic), checkpoint, rows)
        for name in names:
            runner.add(self.view(definitions, name))
        return runner

    def append(self, records: Sequence[dict[str, Any] | bytes]) -> None:
        self.topic.append(
            [it if isinstance(it, bytes) else json.dumps(it).encode() for it in records]
        )

    def published(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for path in sorted((self.folder / "views" / name / "data").iterdir()):
            if path.suffix == ".parquet":
                rows += pyarrow.parquet.read_table(path).to_pylist()
            else:
                rows += [json.loads(line) for line in path.read_text().splitlines()]
        return rows

    def dead(self, name: str) -> dict[int, str]:
        letters = ViewFolder(self.folder / "views" / name).dead_letters()
        return {letter["offset"]: letter["reason"] for letter in letters}


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> House:
    return House(spark, tmp_path)


def _patient(number: int, **more: Any) -> dict[str, Any]:
    return {
        "pid": number,
        "name": f"Name{number}",
        "age": 20 + number % 40,
        "gluc.": 5.5,
        "at": number,
        **more,
    }


def test_masks_and_dead_letters(house: House) -> None:
    definitions = house.define(raw={}, nurse={"anonymizers": [SUPPRESS, BUCKETS], "format": "json"})
    house.append(
        [
            _patient(1),
            b"no json",
            b'{"pid": 1, "name": "x", "age": "old", "at": 1}',
            b"\xff\xfe",
            b'{"name": "Missing Pid", "age": 3, "at": 1}',
            b'{"pid": 2, "name": "y", "age": 3, "at": 1, "gluc.": 1e300}',
            _patient(2, **{"gluc.": None, "extra": "not declared"}),
            b'{"pid": 7, "name": "z", "age": 9, "at": 1} and more',
        ]
    )
    runner = house.stream(definitions, "raw", "nurse")
    runner.catch_up()
    assert runner.failures == {}
    assert house.published("raw") == [
        _patient(1),
        {"pid": 2, "name": "Name2", "age": 22, "gluc.": None, "at": 2},
    ]
    assert house.published("nurse") == [
        {"pid": None, "name": "*", "age": "[20 - 30]", "gluc.": 5.5, "at": 1},
        {"pid": None, "name": "*", "age": "[20 - 30]", "gluc.": None, "at": 2},
    ]
    for name in ("raw", "nurse"):
        dead = house.dead(name)
        assert sorted(dead) == [1, 2, 3, 4, 5, 7]
        assert dead[3] == "the record is not text in UTF-8"
        assert "'pid' is required" in dead[4]
        assert "'gluc.'" in dead[5]
        last = ViewFolder(house.folder / "views" / name).last()
        assert last is not None
        assert (last.totals.read, last.totals.published, last.totals.rejected) == (8, 2, 6)
    everything = b"".join(
        path.read_bytes() for path in (house.folder / "views").rglob("*") if path.is_file()
    )
    assert b"Missing Pid" not in everything
    runner.stop()


def test_a_view_goes_on_where_it_stopped_and_catches_up(house: House) -> None:
    definitions = house.define(one={"anonymizers": [NOISE]}, two={"anonymizers": [SUPPRESS]})
    house.append([_patient(number) for number in range(10)])
    runner = house.stream(definitions, "one", rows=4)
    runner.catch_up()
    first = house.published("one")
    runner.remove("one")
    house.append([_patient(number) for number in range(10, 15)])
    runner.add(house.view(definitions, "two"))
    runner.catch_up()
    runner.add(house.view(definitions, "one"))
    runner.catch_up()
    runner.stop()
    assert [row["pid"] for row in house.published("one")] == list(range(15))
    assert [row["at"] for row in house.published("two")] == list(range(15))
    assert house.published("one")[:10] == first


def test_columns_are_made_once_for_all_batches(house: House) -> None:
    from penstock.pipeline.records import parser  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.views import single_pass  # noqa: PLC0415

    definitions = house.define(one={"anonymizers": [NOISE]})
    house.append([_patient(number) for number in range(12)])
    caches = (parser._compile, single_pass._compile)
    made = [cache.cache_info().misses for cache in caches]
    runner = house.stream(definitions, "one", rows=4)
    runner.catch_up()
    runner.stop()
    assert len(house.published("one")) == 12
    assert [cache.cache_info().misses for cache in caches] == [it + 1 for it in made]


def test_noise_is_the_same_when_a_batch_is_done_again(house: House, tmp_path: Path) -> None:
    definitions = house.define(one={"anonymizers": [NOISE]})
    house.append([_patient(number) for number in range(20)])
    results: list[list[dict[str, Any]]] = []
    for _ in range(2):
        runner = house.stream(definitions, "one", rows=7 + 6 * len(results))
        runner.catch_up()
        runner.stop()
        results.append(house.published("one"))
        (house.folder / "views" / "one").rename(tmp_path / f"old-{len(results)}")
    assert results[0] == results[1]
    assert len({row["gluc."] for row in results[0]}) > 10


def test_k_persons_share_each_group_and_nothing_is_lost(house: House) -> None:
    definitions = house.define(research=RESEARCH)
    # Each person twice: k counts persons, so groups hold more rows than k.
    records = [_patient(number // 2, at=number) for number in range(66)]
    house.append([*records, _patient(99, age=500)])
    runner = house.stream(definitions, "research", rows=13)
    runner.catch_up()
    held = _find(runner, "research").held
    assert 0 < held <= 10
    runner.remove("research", flush=True)
    rows, dead = house.published("research"), house.dead("research")
    assert len(rows) + len(dead) == 67
    assert "is not a number from 0 to 120" in dead[66]
    assert all(row["pid"] is None and row["name"] == "*" for row in rows)
    persons: dict[str, set[int]] = {}
    for row in rows:
        persons.setdefault(row["age"], set()).add(row["at"] // 2)
    assert min(map(len, persons.values())) >= 3
    runner.stop()


def test_what_waits_is_let_go_under_the_definitions_it_came_under(house: House) -> None:
    house.append([_patient(number) for number in range(35)])
    runner = house.stream(house.define(research=RESEARCH), "research")
    runner.catch_up()
    assert _find(runner, "research").held > 0
    runner.stop()
    changed = house.define(research={**RESEARCH, "anonymizers": [{**K, "k": 5}]})
    house.append([_patient(number) for number in range(35, 60)])
    runner = house.stream(changed, "research")
    runner.catch_up()
    runner.remove("research", flush=True)
    rows = [*house.published("research"), *house.dead("research")]
    assert len(rows) == 60
    runner.stop()


def test_windows_are_published_once_each(house: House) -> None:
    window = {"size": 10, "grace": 2}
    definitions = house.define(
        mean={"anonymizers": [SUPPRESS, AVERAGE, {**NOISE, "noise": 0.01}], "window": window}
    )
    house.append([_patient(number, age=number) for number in range(25)])
    runner = house.stream(definitions, "mean", rows=4)
    runner.catch_up()
    assert Counter(row["age"] for row in house.published("mean")) == {4.5: 10, 14.5: 10}
    house.append([_patient(3, at=3), _patient(21, at=21, age=26)])
    runner.catch_up()
    assert house.dead("mean") == {25: "late: its windows were published already"}
    runner.remove("mean", flush=True)
    last = (20 + 21 + 22 + 23 + 24 + 26) / 6
    ages = Counter(row["age"] for row in house.published("mean"))
    assert ages == {4.5: 10, 14.5: 10, last: 6}
    # Stopped is not ended: windows after those that were published are taken in again.
    house.append([_patient(28, at=28), _patient(31, at=31, age=50), _patient(99, at=99)])
    runner.add(house.view(definitions, "mean"))
    runner.catch_up()
    assert house.dead("mean").keys() == {25, 27}
    assert Counter(row["age"] for row in house.published("mean"))[50] == 1
    runner.stop()


def test_records_that_were_read_long_after_they_arrived_are_not_late(house: House) -> None:
    untimed = Document("stream", "patients", {"fields": FIELDS, "subject": "pid"})
    view = {"anonymizers": [SUPPRESS, AVERAGE], "window": {"size": 10}}
    definitions = house.define(untimed, mean=view)
    for number in range(6):
        value = json.dumps(_patient(number)).encode()
        house.topic.append([value], milliseconds=1_000_000 + 5 * number)
    # Batches end in the middle of windows, which the clock has ended long ago: a window leaves
    # only when all of the stream was read.
    runner = house.stream(definitions, "mean", rows=3)
    runner.tick()
    assert house.published("mean") == []
    runner.catch_up()
    ages = [20.5, 20.5, 22.5, 22.5, 24.5, 24.5]
    assert [row["age"] for row in house.published("mean")] == ages
    house.append([_patient(6)])
    runner.tick()
    assert [row["age"] for row in house.published("mean")] == ages
    runner.catch_up()

    def is_published() -> bool:
        runner.tick()
        return len(house.published("mean")) == 7

    _wait(is_published)
    assert house.dead("mean") == {}
    assert [row["age"] for row in house.published("mean")] == [*ages, 26.0]


def test_a_failing_view_leaves_the_others_alone(house: House) -> None:
    definitions = house.define(good={}, bad={"anonymizers": [SUPPRESS]})
    house.append([_patient(1)])
    runner = house.stream(definitions, "good", "bad")
    (house.folder / "views" / "bad" / "commits.jsonl").mkdir()
    runner.catch_up()
    assert list(runner.failures) == ["bad"]
    assert runner.views == ("good",)
    assert len(house.published("good")) == 1
    runner.stop()


def test_definitions_and_consent_are_asked_for_before_each_batch(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = house.define(one={}, two={})
    house.append([_patient(number) for number in range(4)])
    runner = house.stream(definitions, "one", "two", rows=2)
    one, asked = runner.find("one"), []
    assert one is not None
    monkeypatch.setattr(one, "ask", lambda: asked.append(one.batch.number))
    # From the second batch on, one of them is defined otherwise.
    runner._is_current = lambda it: it.view.name == "one" or one.batch.number < 0
    runner.catch_up()
    assert asked == [-1, 0]
    assert runner.views == ("one",)
    assert runner.failures == {}
    assert [row["pid"] for row in house.published("one")] == [0, 1, 2, 3]
    assert [row["pid"] for row in house.published("two")] == [0, 1]
    runner._is_current = lambda _: True
    runner.add(house.view(definitions, "two"))
    runner.catch_up()
    assert (runner.failures, runner.failure) == ({}, None)
    assert [row["pid"] for row in house.published("two")] == [0, 1, 2, 3]
    runner.stop()


def test_spark_offers_new_records_as_they_come(house: House) -> None:
    definitions = house.define(one={"anonymizers": [SUPPRESS]}, two={})
    house.append([_patient(number) for number in range(5)])
    runner = house.stream(definitions, "one", "two")
    runner.start(interval=0.1)
    try:
        _wait(lambda: len(house.published("two")) == 5)
        house.append([_patient(number) for number in range(5, 8)])
        _wait(lambda: len(house.published("two")) == 8)
        assert runner.failure is None
    finally:
        runner.stop()
    assert [row["at"] for row in house.published("one")] == list(range(8))
    # The checkpoint may offer again what a view has seen; it is published once all the same.
    house.append([_patient(8)])
    runner = house.stream(definitions, "one", "two")
    runner.start(interval=0.1)
    try:
        _wait(lambda: len(house.published("one")) == 9 and len(house.published("two")) == 9)
    finally:
        runner.stop()
    assert [row["pid"] for row in house.published("two")] == list(range(9))


def _find(runner: StreamRunner, name: str) -> ViewRunner:
    found = runner.find(name)
    assert found is not None
    return found


def _wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.1)
