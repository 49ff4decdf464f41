"""A person who opted out of a view's purpose is not in it, whatever the view does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog import EventLog
from penstock.eventlog.erasure import ask_to_forget, is_asked
from penstock.model.document import Document
from penstock.pipeline.anonymizers.stateful import find_opted_out
from penstock.pipeline.records.columns import SUBJECT
from penstock.pipeline.records.opt_outs import ERASED, REFUSED, OptOuts, mark_subjects
from penstock.pipeline.service.control import Control
from penstock.pipeline.sinks.published import read_published
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks, number_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

MARKS = SubjectMarks(bytes(32))
SOON = 120.0
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
        "quasi_identifiers": [{"key": "age", "min": 0, "max": 100}],
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
        view("grouped", "research", anonymizers=GROUPED, accept_risk=["identifier:pid"]),
    ]
)
VIEWS = ("care", "research", "lines", "grouped")


def test_who_opted_out_is_left_out_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.pipeline.service.manager import Manager  # noqa: PLC0415 - loads Spark

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
    now = OptOuts.of(7, [("2", "research"), ("3", "marketing")], MARKS)
    feed_and_run(1, 2, 3)
    assert published("care") == [1, 1, 2, 2, 3, 3]
    for name in ("research", "lines", "grouped"):
        assert published(name) == [1, 1, 2, 3, 3], name
        assert list(control.view(name).dead_letters()) == [{"offset": 4, "reason": REFUSED}]
        last = control.view(name).last()
        assert last is not None
        assert (last.totals.read, last.totals.published, last.totals.rejected) == (6, 5, 1)


def test_who_is_erased_is_forgotten_among_what_a_view_holds_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.service.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(tmp_path, {}).pipeline.model_copy(update={"interval": 0.1})
    topic = EventLog(settings.event_log).topic("s")
    held = Document("view", "held", {"stream": "s", "anonymizers": GROUPED,
                    "accept_risk": ["identifier:pid"]})  # fmt: skip
    definitions = DefinitionSet.build([Document("stream", "s", STREAM), held])
    manager = Manager(spark, settings, lambda: definitions, consent=lambda: OptOuts(marks=MARKS))
    view = manager.control.view("held")
    manager.control.change("held", "start")
    stop = threading.Event()
    thread = threading.Thread(target=manager.run, args=(stop,), daemon=True)
    thread.start()

    def admit(*pids: int) -> None:
        topic.append([json.dumps({"pid": it, "age": it}).encode() for it in pids])
        wait_for(lambda: (it := view.last()) is not None and it.totals.read == topic.next_offset)

    def count_held() -> int:
        last = view.last()
        return last.held if last is not None else 0

    try:
        admit(1)
        assert count_held() == 1
        # Nothing comes in meanwhile: the view does it by itself.
        ask_to_forget(view.folder, "r1", MARKS.number("1"))
        wait_for(lambda: not is_asked(view.folder, "r1"))
        assert count_held() == 0
        admit(1)  # who comes back is somebody new
        ask_to_forget(view.folder, "r2", MARKS.number("2"))
        wait_for(lambda: not is_asked(view.folder, "r2"))
        admit(3)
    finally:
        stop.set()
        thread.join(SOON)
    manager.control.change("held", "stop")
    manager.run_once()
    assert sorted(row["pid"] for row in read_published(view)) == [1, 3]
    assert list(view.dead_letters()) == [{"offset": 0, "reason": ERASED}]


def test_nothing_is_published_while_opt_outs_are_not_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.service.manager import Manager  # noqa: PLC0415 - loads Spark

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


@contextmanager
def running(spark: SparkSession, folder: Path, book: ConsentBook) -> Iterator[Control]:
    """Run the views of opt-outs that a store holds, as `penstock views run` does."""
    from penstock.pipeline.service.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(folder, {}).pipeline.model_copy(update={"interval": 0.1})
    manager = Manager(spark, settings, lambda: DEFINITIONS, consent=book.opt_outs)
    for name in ("care", "research"):
        manager.control.change(name, "start")
    told = threading.Event()
    thread = threading.Thread(target=manager.run, args=(told,), daemon=True)
    thread.start()
    try:
        yield manager.control
    finally:
        told.set()
        thread.join(SOON)
    assert not thread.is_alive()


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_running_view_follows_the_store(spark: SparkSession, tmp_path: Path) -> None:
    settings = defaults(tmp_path, {}).pipeline
    topic = EventLog(settings.event_log).topic("s")

    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        book = ConsentBook(database, MARKS)
        officer = ConsentBook(database, MARKS)
        with running(spark, tmp_path, book) as control:

            def admit(*pids: int) -> None:
                topic.append([json.dumps({"pid": it, "age": it}).encode() for it in pids])
                wait_for(lambda: count_read() == [topic.next_offset] * 2)

            def count_read() -> list[int]:
                commits = [control.view(name).last() for name in ("care", "research")]
                return [it.totals.read if it else 0 for it in commits]

            admit(1, 2)
            officer.choose(Choice.OPT_OUT, ["2"], "research")
            admit(1, 2)
            officer.choose(Choice.OPT_IN, ["2"], "research")
            admit(1, 2)
            found = {
                name: [row["pid"] for row in read_published(control.view(name))]
                for name in ("care", "research")
            }
    assert sorted(found["care"]) == [1, 1, 1, 2, 2, 2]
    assert sorted(found["research"]) == [1, 1, 1, 2, 2]


def test_records_tell_whom_they_are_about_by_marks_alone(spark: SparkSession) -> None:
    from penstock.model.kinds import Stream  # noqa: PLC0415

    fields = [{"name": "who", "type": "string"}, {"name": "n", "type": "long"}]
    names = ["Ada", "Bj\u00f6rn", "", None, "\u6f22"]
    for subject, values in (("who", names), ("n", [1, -7, 2**40, None, 0])):
        stream = Stream.model_validate({"name": "s", "fields": fields, "subject": subject})
        kind = "string" if subject == "who" else "long"
        frame = spark.createDataFrame([(it,) for it in values], f"{subject} {kind}")
        marked = mark_subjects(frame, stream, MARKS)
        found = [row[SUBJECT] for row in marked.collect()]
        # An empty text names nobody who could opt out, and is marked all the same.
        for value, number in zip(values, found, strict=True):
            if value not in {None, ""}:
                assert number == number_of(MARKS.of(str(value)))
        assert found[3] is None
        shown = marked._jdf.queryExecution().toString()
        assert MARKS.key.hex() not in shown.lower()
        out = OptOuts.of(1, [(str(values[1]), "research")], MARKS).refusing(["research"])
        numbers = np.array([number_of(mark) for mark in out], dtype=np.int64)
        mask = find_opted_out(marked.select(SUBJECT).toArrow(), numbers)
        assert mask.tolist() == [False, True, False, False, False]
        assert not find_opted_out(marked.select(SUBJECT).toArrow(), numbers[:0]).any()
    nobody = mark_subjects(frame, Stream.model_validate({"name": "s", "fields": fields}), MARKS)
    assert {row[SUBJECT] for row in nobody.collect()} == {None}
