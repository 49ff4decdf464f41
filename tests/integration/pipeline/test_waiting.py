"""Records of a k-anonymous view that wait for others: the clock lets them leave, on real Spark."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.eventlog.connection import BrokerError
from penstock.model.document import Document
from penstock.pipeline.sinks.published import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.manager import Manager

pytestmark = pytest.mark.needs("java")

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "at", "type": "long"},
]
# Records tell their times, and those stand still: waits go by the clock nevertheless.
STREAM = Document("stream", "patients", {"fields": FIELDS, "subject": "pid", "time": "at"})
K = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": 3,
    "delta": 1000,
    "max_wait": "1s",
}
VIEWS: dict[str, dict[str, Any]] = {
    "plain": K,
    "castle": {**K, "algorithm": "castle"},
    "rooted": {**K, "outliers": "root"},
    "patient": {key: value for key, value in K.items() if key != "max_wait"},
}


class House:
    """An installation with k-anonymous views of one stream."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

        views = [
            Document(
                "view",
                name,
                {
                    "stream": "patients",
                    "anonymizers": [body],
                    "accept_risk": ["time:at"],
                    "shards": 1,
                },
            )
            for name, body in VIEWS.items()
        ]
        definitions = DefinitionSet.build([STREAM, *views])
        settings = defaults(folder, {}).pipeline.model_copy(update={"interval": 0.1})
        self.topic = EventLog(settings.event_log).topic("patients")
        self.manager: Manager = Manager(spark, settings, lambda: definitions)
        for name in VIEWS:
            self.manager.control.change(name, "start")

    def append(self, *ages: int) -> None:
        start = self.topic.next_offset
        rows = [{"pid": start + n, "age": age, "at": 1} for n, age in enumerate(ages)]
        self.topic.append([json.dumps(row).encode() for row in rows])

    def groups(self, view: str) -> Counter[str]:
        return Counter(row["age"] for row in read_published(self.manager.control.view(view)))

    def dead(self, view: str) -> dict[int, str]:
        letters = self.manager.control.view(view).dead_letters()
        return {letter["offset"]: letter["reason"] for letter in letters}

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


def _wait(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_what_waited_long_enough_leaves_without_another_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path)
    house.append(20, 21, 22, 60, 62, 64)
    limited = ("plain", "castle", "rooted")
    with house.running():
        _wait(lambda: all(house.groups(view).total() == 6 for view in limited))
        # Two persons alone: no group, and no box that was published before holds 119.
        house.append(119, 119)
        _wait(lambda: all(house.dead(view).keys() == {6, 7} for view in ("plain", "castle")))
        _wait(lambda: house.groups("rooted").total() == 8)
    for view in limited:
        assert min(house.groups(view).values()) >= 3, view
    assert all("not enough persons" in it for it in house.dead("plain").values())
    assert house.groups("rooted")["[0 - 120]"] == 3 + 2
    assert house.dead("rooted") == {}
    last = house.manager.control.view("patient").last()
    assert last is not None
    assert (last.held, house.groups("patient").total()) == (8, 0)


def test_a_source_out_of_reach_keeps_nobody_waiting(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path)
    house.append(20, 21, 22, 23)
    with house.manager._alone():
        house.manager.look(stream=False)
        (runner,) = house.manager._streams.values()

        def fail(*_: object) -> int:
            raise BrokerError("no broker answers")

        runner.source.count_behind = fail  # type: ignore[method-assign,assignment]
        runner.catch_up()

        def has_left() -> bool:
            runner.tick()
            return house.groups("plain").total() == 4

        _wait(has_left)
        assert runner.failures == {}
        house.manager.close()


def test_what_a_stopped_view_holds_back_leaves_with_its_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline.views.stateful_query import StatefulQuery  # noqa: PLC0415 - loads Spark

    def drain(_: object) -> None:
        raise AssertionError("a query of its own")

    monkeypatch.setattr(StatefulQuery, "drain", drain)
    house = House(spark, tmp_path)
    for view in VIEWS.keys() - {"patient"}:
        house.manager.control.change(view, "pause")
    house.append(20, 21, 22, 23)
    control = house.manager.control
    with house.running():
        _wait(lambda: (last := control.view("patient").last()) is not None and last.held == 4)
        control.change("patient", "stop")
        _wait(lambda: house.groups("patient").total() == 4)
        # It goes on behind them.
        house.append(20, 21, 22)
        control.change("patient", "start")
        _wait(lambda: (last := control.view("patient").last()) is not None and last.held == 3)
        control.change("patient", "stop")
        _wait(lambda: house.groups("patient").total() == 7)
