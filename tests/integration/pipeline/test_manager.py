"""Views are added, changed, paused and removed while others run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.model.document import Document, Key
from penstock.pipeline.control import describe
from penstock.pipeline.sinks.published import read_published
from penstock.store.consent import ConsentUnknownError
from penstock.store.opt_outs import OptOuts, nobody_opted_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.manager import Manager

pytestmark = pytest.mark.needs("java")

STREAM = Document(
    "stream",
    "patients",
    {"fields": [{"name": "pid", "type": "int"}, {"name": "name", "type": "string"}]},
)
SUPPRESS = {"anonymizer": "suppression", "keys": ["name"]}


def _view(name: str, *anonymizers: dict[str, Any]) -> Document:
    return Document("view", name, {"stream": "patients", "anonymizers": list(anonymizers)})


class House:
    """An installation whose manager runs in a thread."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

        self.definitions = DefinitionSet.build([STREAM, _view("one"), _view("two", SUPPRESS)])
        settings = defaults(folder, {}).pipeline.model_copy(update={"interval": 0.1})
        self.topic = EventLog(settings.event_log).topic("patients")
        self.manager: Manager = Manager(spark, settings, lambda: self.definitions)
        self.control = self.manager.control

    @contextmanager
    def running(self) -> Iterator[None]:
        told = threading.Event()
        thread = threading.Thread(target=self.manager.run, args=(told,))
        thread.start()
        try:
            yield
        finally:
            told.set()
            thread.join(60)
            assert not thread.is_alive()

    def append(self, *pids: int) -> None:
        self.topic.append([json.dumps({"pid": n, "name": f"N{n}"}).encode() for n in pids])

    def published(self, view: str) -> list[int]:
        return sorted(row["pid"] for row in read_published(self.control.view(view)))

    def state(self, view: str) -> str:
        found: str = describe(view, "patients", self.control, self.topic, coarse=False)["state"]
        return found


def _wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.05)


def test_views_come_and_go_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path)
    house.append(1, 2)
    house.control.change("one", "start")
    with house.running():
        _wait(lambda: house.published("one") == [1, 2])
        _wait(lambda: house.state("one") == "running")
        assert house.published("two") == []
        # Started later, a view begins with the stream's first record.
        house.control.change("two", "start")
        _wait(lambda: house.published("two") == [1, 2])
        house.control.change("one", "pause")
        _wait(lambda: house.state("one") == "paused")
        house.append(3)
        _wait(lambda: house.published("two") == [1, 2, 3])
        assert house.published("one") == [1, 2]
        house.control.change("one", "resume")
        _wait(lambda: house.published("one") == [1, 2, 3])
        # A changed definition holds for what comes after it.
        house.definitions = house.definitions.change([_view("one", SUPPRESS), _view("three")])
        house.control.change("three", "start")
        _wait(lambda: house.published("three") == [1, 2, 3])
        house.append(4)
        _wait(lambda: house.published("one") == [1, 2, 3, 4])
        names = {row["pid"]: row["name"] for row in read_published(house.control.view("one"))}
        assert names == {1: "N1", 2: "N2", 3: "N3", 4: "*"}
        house.definitions = house.definitions.change(delete=[Key("view", "three")])
        # Until the manager looks again, the view takes part.
        _wait(lambda: "three" not in house.manager._streams["patients"].views)
        house.append(5)
        _wait(lambda: house.published("two") == [1, 2, 3, 4, 5])
        assert house.published("three") == [1, 2, 3, 4]


def test_a_view_that_fails_says_why_and_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path)
    vault = {"anonymizer": "tokenization", "keys": ["name"], "method": "vault", "vault": "names"}
    house.definitions = house.definitions.change([_view("two", vault)])
    house.append(1)
    for name in ("one", "two"):
        house.control.change(name, "start")
    with house.running():
        _wait(lambda: house.published("one") == [1])
        _wait(lambda: house.state("two") == "failed")
        found = house.control.condition("two")
        assert found is not None
        assert "vault" in str(found.error)
        house.definitions = house.definitions.change([_view("two", SUPPRESS)])
        _wait(lambda: house.published("two") == [1])
        _wait(lambda: house.state("two") == "running")


def test_a_view_that_moved_to_another_stream_leaves_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path)
    house.append(1)
    for name in ("one", "two"):
        house.control.change(name, "start")
    with house.running():
        _wait(lambda: house.published("one") == house.published("two") == [1])
        body = {"stream": "others", "anonymizers": []}
        others = Document("stream", "others", STREAM.body)
        house.definitions = house.definitions.change([others, Document("view", "one", body)])
        # Without a record: no batch finds out that the view is defined otherwise.
        _wait(lambda: house.manager._streams["patients"].views == ("two",))


def test_a_view_that_changes_while_it_catches_up_is_brought_to_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path)
    house.append(1, 2)
    house.control.change("one", "start")
    before = house.definitions
    asked: list[None] = []

    def look() -> DefinitionSet:
        asked.append(None)
        return before if len(asked) == 1 else before.change([_view("one", SUPPRESS)])

    house.manager._definitions = look
    house.manager.run_once()
    assert house.published("one") == [1, 2]
    assert {row["name"] for row in read_published(house.control.view("one"))} == {"*"}


def test_who_opted_out_is_asked_again_before_a_single_run_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The store was away for a moment: the view is late, and not left out."""
    house = House(spark, tmp_path)
    house.append(1, 2)
    for name in ("one", "two"):
        house.control.change(name, "start")
    away = [True, True, True]

    def consent() -> OptOuts:
        if away and away.pop():
            raise ConsentUnknownError("the store is away", fix="wait")
        return nobody_opted_out()

    house.manager._consent = consent
    house.manager.run_once()
    assert house.published("one") == house.published("two") == [1, 2]


def test_what_passes_once_and_then_does_not_is_not_tried_again_and_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path)
    house.append(1)
    house.control.change("one", "start")
    asked: list[None] = []

    def consent() -> OptOuts:
        asked.append(None)
        if len(asked) == 1:
            raise ConsentUnknownError("the store is away", fix="wait")
        raise ValueError("this would fail again and again")

    house.manager._consent = consent
    with house.running():
        _wait(lambda: len(asked) == 2 and house.state("one") == "failed")
        house.definitions = house.definitions.change([_view("three")])
        house.control.change("three", "start")
        # Looked at often meanwhile.
        _wait(lambda: len(asked) > 2)
        _wait(lambda: house.state("three") == "failed")
    assert len(asked) == 3


def test_a_stream_gets_a_field_and_loses_another_while_its_views_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = House(spark, tmp_path)
    pid, name = ({"name": "pid", "type": "int"}, {"name": "name", "type": "string"})
    ward = {"name": "ward", "type": "string", "optional": True}

    def declare(*fields: dict[str, Any]) -> None:
        house.definitions = house.definitions.change(
            [Document("stream", "patients", {"fields": list(fields)})]
        )

    def rows(view: str) -> dict[int, dict[str, Any]]:
        return {row["pid"]: row for row in read_published(house.control.view(view))}

    house.definitions = house.definitions.change([_view("two")])
    house.append(1)
    for view in ("one", "two"):
        house.control.change(view, "start")
    with house.running():
        _wait(lambda: house.published("one") == house.published("two") == [1])
        declare(pid, name, ward)  # before anybody writes it
        house.append(2)
        house.topic.append([b'{"pid": 3, "name": "N3", "ward": "north"}'])
        _wait(lambda: house.published("one") == house.published("two") == [1, 2, 3])
        declare(pid, {**name, "optional": True}, ward)  # before anybody leaves it out
        house.topic.append([b'{"pid": 4, "ward": "south"}'])
        _wait(lambda: house.published("one") == house.published("two") == [1, 2, 3, 4])
        declare(pid, ward)
        house.append(5)
        _wait(lambda: house.published("one") == house.published("two") == [1, 2, 3, 4, 5])
    for view in ("one", "two"):
        found = rows(view)
        assert "ward" not in found[1]
        assert [found[it]["ward"] for it in (2, 3, 4, 5)] == [None, "north", "south", None]
        assert found[3]["name"] == "N3"
        assert "name" not in found[5]
        assert not list(house.control.view(view).dead_letters())
