"""A view in real time, from Kafka to Kafka: records come within milliseconds, at least once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.model.document import Document
from penstock.store.opt_outs import OptOuts, SubjectMarks
from tests.support.kafka.clusters import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java", "jars")

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "value", "type": "double", "optional": True},
]
BODY = {"fields": FIELDS, "subject": "pid", "source": "kafka"}
VIEW = {"stream": "live", "format": "topic", "trigger": "real-time", "purposes": ["research"]}


def define(*masks: dict[str, Any], **more: Any) -> DefinitionSet:
    return DefinitionSet.build(
        [
            Document("purpose", "research", {}),
            Document("stream", "live", BODY),
            Document("view", "now", {**VIEW, "anonymizers": list(masks), **more}),
        ]
    )


class House:
    """An installation with a view in real time; its definitions and opt-outs change."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, folder: Path) -> None:
        from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

        settings = settings_of(kafka)
        self.log = KafkaLog(settings)
        self.marks = SubjectMarks(b"m" * 32)
        self.definitions = define({"anonymizer": "suppression", "keys": ["name"]})
        self.opt_outs: OptOuts = OptOuts()
        self.manager = Manager(
            spark,
            defaults(folder, {}).pipeline.model_copy(update={"interval": 0.1}),
            lambda: self.definitions,
            kafka=settings,
            consent=lambda: self.opt_outs,
        )
        self.manager.control.change("now", "start")

    def opt_out(self, pid: int) -> None:
        self.opt_outs = OptOuts.of(1, [(str(pid), "research")], self.marks)

    def append(self, *pids: int) -> None:
        rows = [{"pid": it, "name": f"person {it}", "value": it / 2} for it in pids]
        self.log.topic("live").append([json.dumps(row).encode() for row in rows])

    def published(self) -> list[dict[str, Any]]:
        topic = self.log.topic("live-now")
        (start, end) = topic.ends()[0]
        return [json.loads(it.value) for it in topic.read_partition(0, start, end)]

    def pids(self) -> set[int]:
        return {it["pid"] for it in self.published()}

    @contextmanager
    def running(self) -> Iterator[None]:
        told = threading.Event()
        thread = threading.Thread(target=self.manager.run, args=(told,))
        thread.start()
        try:
            yield
        finally:
            told.set()
            thread.join(120)
            assert not thread.is_alive()


def _wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.01)


@pytest.mark.timeout(400)
def test_records_come_at_once_and_changes_hold_from_then_on(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    house = House(spark, kafka, tmp_path)
    for topic in ("live", "live-now"):
        house.log.make_topic(topic)
    with house.running():
        house.append(1)
        _wait(lambda: house.pids() == {1})
        waits = []
        for pid in range(2, 32):
            house.append(pid)
            sent = time.monotonic()
            _wait(lambda pid=pid: len(house.published()) >= pid)  # type: ignore[misc]
            waits.append(time.monotonic() - sent)
        # A batch lasts for ten seconds: nobody waits for its end.
        assert sorted(waits)[len(waits) // 2] < 1.0
        assert house.published()[0] == {"pid": 1, "name": "*", "value": 0.5}
        house.log.topic("live").append([b"no record"])
        _wait(lambda: _totals(house) == (32, 31, 1))
        (letter,) = house.manager.control.view("now").dead_letters()
        assert (letter["partition"], letter["offset"]) == (0, 31)

        house.opt_out(50)
        _wait(lambda: _runs_without(house))
        house.append(50, 51)
        _wait(lambda: 51 in house.pids())
        assert 50 not in house.pids()

        house.definitions = define({"anonymizer": "suppression", "keys": ["name", "value"]})
        _wait(lambda: _runs_as_defined(house))
        house.append(60)
        _wait(lambda: 60 in house.pids())
        assert house.published()[-1]["value"] != 30.0

        house.manager.control.change("now", "pause")
        _wait(lambda: not house.manager._streams)
        house.append(70)
    # By itself, and once: on the same checkpoint.
    house.manager.control.change("now", "resume")
    house.manager.run_once()
    assert {70, 60, 51, 1} < house.pids()
    assert 50 not in house.pids()
    read, _, rejected = _totals(house)
    assert (read, rejected) == (36, 2)


def _totals(house: House) -> tuple[int, int, int]:
    last = house.manager.control.view("now").last()
    return (last.totals.read, last.totals.published, last.totals.rejected) if last else (0, 0, 0)


def _query(house: House) -> Any:
    runners = list(house.manager._streams.values())
    return runners[0]._queries[0] if runners and runners[0]._queries else None


def _runs_without(house: House) -> bool:
    query = _query(house)
    return query is not None and bool(query._refusing) and not query.has_ended


def _runs_as_defined(house: House) -> bool:
    query = _query(house)
    now = house.manager._streams
    views = list(query.views.values()) if query is not None and now else []
    return bool(views) and "value" in str(views[0].blueprint.view.anonymizers)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"format": "parquet"}, "published in batches"),
        ({"encoding": "avro"}, "Avro is written in batches"),
        (
            {
                "anonymizers": [
                    {
                        "anonymizer": "tokenization",
                        "keys": ["name"],
                        "method": "vault",
                        "vault": "v",
                    },
                ]
            },
            "tokens of a vault",
        ),
        (
            {
                "anonymizers": [
                    {"anonymizer": "shuffling", "keys": ["value"]},
                ],
                "window": {"size": "10s"},
            },
            "wait for others",
        ),
    ],
)
def test_what_cannot_run_in_real_time_is_refused(more: dict[str, Any], said: str) -> None:
    from penstock.errors import InvalidError  # noqa: PLC0415

    with pytest.raises(InvalidError) as found:
        define(**more)
    assert said in str(found.value)
    assert "trigger" in str(found.value)
