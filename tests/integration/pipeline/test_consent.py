"""A person who opted out of a view's purpose is not in it, whatever the view does."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.cep.context import decode_snapshot
from penstock.components import MosquittoServer
from penstock.config import defaults
from penstock.definitions import DefinitionSet, read_text
from penstock.errors import UnavailableError
from penstock.eventlog import EventLog, Topic
from penstock.eventlog.erasure import ask_to_forget, is_asked
from penstock.model.document import Document
from penstock.pipeline.anonymizers.stateful import find_opted_out
from penstock.pipeline.control import Control
from penstock.pipeline.records.columns import SUBJECT
from penstock.pipeline.records.opt_outs import ERASED, REFUSED, OptOuts, mark_subjects
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock.pipeline.sources.event_log import TopicSource
from penstock.rights.dispatch.message import Outcome
from penstock.store.consent import Choice, ConsentBook, ConsentUnknownError
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks, number_of
from tests.support.rights.erasing import Installation

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
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

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
        ask_to_forget(view.folder, "r1", str(MARKS.number("1")))
        wait_for(lambda: not is_asked(view.folder, "r1"))
        assert count_held() == 0
        admit(1)  # who comes back is somebody new
        ask_to_forget(view.folder, "r2", str(MARKS.number("2")))
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


@contextmanager
def running(spark: SparkSession, folder: Path, book: ConsentBook) -> Iterator[Control]:
    """Run the views of opt-outs that a store holds, as `penstock views run` does."""
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

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


EVENTS = """
kind: vocabulary
name: home
object: {pid: string}
---
kind: object
name: home
topics: home/+pid/#
---
kind: purpose
name: research
---
kind: purpose
name: care
---
kind: stream
name: home
subject: pid
from: [home/+pid/+what]
time: at
fields: [{name: pid, type: string}, {name: what, type: string}, {name: at, type: long}]
---
kind: event
name: Step
purposes: [research]
attributes: {pid: string}
packet: {filters: [home/+/step], set: {pid: o.pid}}
---
kind: event
name: Fall
attributes: {pid: string}
packet: {filters: [home/+/fall], set: {pid: o.pid}}
---
kind: event
name: Walks
attributes: {pid: string}
pattern: {event: Step, where: it.pid != "", set: {pid: it.pid}}
---
kind: event
name: Lies
attributes: {pid: string}
pattern: {event: Fall, where: it.pid != "", set: {pid: it.pid}}
"""


def test_events_are_not_detected_for_what_somebody_opted_out_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.detection.runner import DetectionRunner  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.detection.tasks import DetectionPlan  # noqa: PLC0415 - loads Spark

    topic = Topic(tmp_path / "log")
    now: OptOuts | None = OptOuts(marks=MARKS)

    def consent() -> OptOuts:
        if now is None:
            raise ConsentUnknownError("the store is away")
        return now

    plan = DetectionPlan.find(DefinitionSet.build(read_text(EVENTS).documents), "home")
    folder = tmp_path / "found"
    runner = DetectionRunner(spark, plan, TopicSource(topic), folder, parts=2, consent=consent)
    runner.open()
    clock = time.time_ns() // 1_000_000 - 60_000  # records tell a time near their arrival

    def happen(*people: str) -> list[tuple[str, str]]:
        nonlocal clock
        values = []
        for who in people:
            for what in ("step", "fall"):
                clock += 1
                values.append(json.dumps({"pid": who, "what": what, "at": clock}).encode())
        topic.append(values)
        before = len(list(read_published(ViewFolder(folder))))
        runner.catch_up()
        rows = list(read_published(ViewFolder(folder)))
        made = [it for it in rows if it["kind"] == "event" and it["at"] > clock - len(values)]
        assert len(rows) > before
        return sorted((it["name"], json.loads(it["said"])["pid"]) for it in made)

    everybody = [("Lies", "ann"), ("Lies", "bob"), ("Walks", "ann"), ("Walks", "bob")]
    assert happen("ann", "bob") == everybody
    now = OptOuts.of(2, [("ann", "research/steps")], MARKS)
    # A part of what the event is for is enough; a fall is told whatever anybody chose.
    assert happen("ann", "bob") == [it for it in everybody if it != ("Walks", "ann")]
    now = None
    topic.append([b"{}"])
    with pytest.raises(ConsentUnknownError):
        runner.catch_up()
    now = OptOuts(marks=MARKS)
    assert happen("ann", "bob") == everybody
    runner.close()


@pytest.mark.needs("mosquitto")
def test_what_spark_has_detected_of_a_person_is_erased(
    spark: SparkSession, tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    from penstock.pipeline.detection.runner import DetectionRunner  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.detection.tasks import DetectionPlan  # noqa: PLC0415 - loads Spark

    text = EVENTS + (
        "---\nkind: event\nname: Often\nattributes: {pid: string}\n"
        "pattern: {iterate: {event: Fall}, by: [pid], times: 3, within: 1h}\n"
    )
    documents = read_text(text).documents
    broker = {"mode": "external", "host": "127.0.0.1", "port": mosquitto.port}
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        place = Installation(tmp_path, database, *documents, broker=broker)
        topic, folder = place.events.topic("home"), place.config.pipeline.detections / "home"
        plan = DetectionPlan.find(place.definitions, "home")
        clock = time.time_ns() // 1_000_000 - 60_000

        def fall(runner: DetectionRunner, *people: str) -> list[str]:
            nonlocal clock
            for who in people:
                clock += 1
                topic.append([json.dumps({"pid": who, "what": "fall", "at": clock}).encode()])
            runner.catch_up()
            rows = read_published(ViewFolder(folder))
            return sorted(json.loads(it["said"])["pid"] for it in rows if it["name"] == "Often")

        def run() -> DetectionRunner:
            made = DetectionRunner(spark, plan, TopicSource(topic), folder, parts=2)
            made.open()
            return made

        def read_state() -> str:
            states = [it for it in (folder / "engines").rglob("*") if it.is_file()]
            return str([decode_snapshot(it.read_bytes()) for it in states if not it.suffix])

        with closing(run()) as runner:
            assert fall(runner, *(2 * ["ann", "bob"]), "ann") == ["ann"]
        assert "'bob'" in read_state()
        # Nobody runs it: the results go, what it remembers as soon as somebody does.
        assert place.erase("ann").outcome is Outcome.DONE
        counts = {it["place"]: it for it in place.evidence("ann").content["erased"]}
        assert counts["detected in home"]["rows"] == 4  # three falls, and that they are many
        left = {it["place"]: it["reason"] for it in place.evidence("ann").content["remains"]}
        assert "forgotten when it runs" in left["detected in home"]
        assert place.erase("bob", "b").outcome is Outcome.DONE
        assert "'bob'" in read_state()
        with closing(run()) as runner:
            runner.catch_up()
            assert "'bob'" not in read_state()
            # A third fall would have been one too many.
            assert fall(runner, "bob") == []
        with folder.joinpath(".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as if it ran
            waiting = place.erase("bob", "c")
            assert (waiting.outcome, waiting.trouble) == (Outcome.SENT, "views-forget")
