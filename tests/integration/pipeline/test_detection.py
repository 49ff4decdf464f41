"""Detection at scale finds what the in-line engine finds, on the same messages.

The messages are those of a nursing home, as its gateway would have recorded them: what
actions published stands among them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.program import PacketEvents, RequestEvents
from penstock.cep.steps import Publication, StepResult
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.eventlog import Topic
from penstock.lang.scalars import EPOCH
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock_lab.demo.nursing_home.definitions import make_documents, read_rules, set_pace
from penstock_lab.generate.nursing_home import House
from penstock_lab.simulation.in_process import InProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.detection.runner import DetectionRunner

pytestmark = pytest.mark.needs("java")

PATIENTS, DAYS, ROOMS_EVERY = 10, 9, 120_000
FIELDS = [
    {"name": "topic", "type": "string"},
    {"name": "at", "type": "long"},
    {"name": "pid", "type": "string"},
    {"name": "temperature", "type": "double", "optional": True},
    {"name": "respiratory", "type": "double", "optional": True},
    {"name": "saturation", "type": "double", "optional": True},
    {"name": "location", "type": "string", "optional": True},
    {"name": "result", "type": "boolean", "optional": True},
    {"name": "testDate", "type": "string", "optional": True},
    {"name": "reqId", "type": "long", "optional": True},
]
RUN = "from penstock.cli import main; main()"
STREAM = Document("stream", "house", {"fields": FIELDS, "time": "at", "subject": "pid"})


class Message(NamedTuple):
    """A message as the log has it."""

    at: int
    topic: str
    payload: dict[str, Any]


class Detected(NamedTuple):
    """What an engine found: of transitions the order of each person counts."""

    transitions: dict[tuple[str, str], list[tuple[Any, ...]]]
    events: Counter[tuple[Any, ...]]
    publications: Counter[tuple[Any, ...]]


def _documents(house: House) -> list[Document]:
    rules = set_pace(read_rules(), rooms_every=ROOMS_EVERY)
    return [*rules, *make_documents(house.people.documents()), STREAM]


@cache
def _record() -> tuple[DefinitionSet, tuple[Message, ...], int]:
    """Let the days of a house pass; return what its gateway would have recorded."""
    house = House(PATIENTS, DAYS, 5, rooms_every=ROOMS_EVERY)
    carrier = InProcess(_documents(house))
    told: list[Message] = []

    def hear(publication: Publication, at: int) -> None:
        payload = dict(publication.payload)
        told.append(Message(at, publication.topic, payload))
        if publication.topic == "warning":
            house.warn(payload["pid"], payload["time"], at)

    carrier.on_publication = hear
    for at, user, topic, payload in house.messages():
        told.append(Message(at, topic, payload))
        assert carrier.publish(at, user, topic, payload).allowed
    return carrier.definitions, tuple(told), house.end


def _detect_in_line(
    definitions: DefinitionSet, messages: Iterable[Message], end: int, about: str = "patientId"
) -> Detected:
    program = compile_program(definitions.definitions)
    engine = Engine(program)
    plain = {
        name
        for name, index in program.types.items()
        if isinstance(program.operators[index], PacketEvents | RequestEvents)
    }
    found = Detected({}, Counter(), Counter())

    def note(outcome: StepResult) -> None:
        for it in outcome.transitions:
            step = it.at, it.source, it.target, it.event, it.evolution
            found.transitions.setdefault((it.scenario, it.subject), []).append(step)
        for name, row in outcome.detected:
            if name not in plain:
                found.events[name, _canonical(json.dumps(row.values, default=_tell))] += 1
        for made in outcome.publications:
            text = _canonical(json.dumps(made.payload))
            found.publications[made.action, made.subject, made.topic, text] += 1

    for at, topic, payload in messages:
        o = {about: payload["pid"]}
        e = {"time": EPOCH + timedelta(milliseconds=at)}
        packet = Packet(topic, {"topic": topic, "payload": payload}, {}, o, e)
        note(engine.prepare(packet, at).commit())
    note(engine.advance(end))
    return found


def _tell(moment: Any) -> str:
    return str(moment.isoformat().replace("+00:00", "Z"))


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _read(folder: Path) -> Detected:
    found = Detected({}, Counter(), Counter())
    rows = sorted(
        read_published(ViewFolder(folder)), key=lambda it: (it["part"], it["step"], it["place"])
    )
    for it in rows:
        if it["kind"] == "transition":
            step = it["at"], it["source"], it["target"], it["event"], it["evolution"]
            found.transitions.setdefault((it["name"], it["subject"]), []).append(step)
        elif it["kind"] == "event":
            found.events[it["name"], _canonical(it["said"])] += 1
        else:
            made = it["name"], it["subject"], it["topic"], _canonical(it["said"])
            found.publications[made] += 1
    return found


def _append(topic: Topic, messages: Iterable[Message]) -> None:
    topic.append(
        [json.dumps({**it.payload, "topic": it.topic, "at": it.at}).encode() for it in messages]
    )


def _runner(
    spark: SparkSession, definitions: DefinitionSet, rows: int, log: Path, found: Path
) -> DetectionRunner:
    from penstock.pipeline.detection.runner import DetectionRunner  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.detection.tasks import DetectionPlan  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415

    plan = DetectionPlan.find(definitions, "house")
    return DetectionRunner(spark, plan, TopicSource(Topic(log)), found, rows=rows, parts=3)


@pytest.mark.timeout(300)
def test_the_same_is_detected_as_in_line(spark: SparkSession, tmp_path: Path) -> None:
    definitions, messages, end = _record()
    expected = _detect_in_line(definitions, messages, end)
    topic = Topic(tmp_path / "log")
    half = len(messages) // 2
    # In batches whose ends fall anywhere; between two of them everything is started anew.
    _append(topic, messages[:half])
    runner = _runner(spark, definitions, len(messages) // 3, topic.folder, tmp_path / "found")
    runner.open()
    runner.catch_up()
    runner.close()
    _append(topic, messages[half:])
    runner = _runner(spark, definitions, len(messages) // 3, topic.folder, tmp_path / "found")
    runner.open()
    assert runner.totals.read == half
    runner.catch_up()
    runner.advance(end)
    runner.close()
    found = _read(tmp_path / "found")
    assert found.transitions == expected.transitions
    assert found.publications == expected.publications
    assert found.events == expected.events
    # Every kind of thing came about: the comparison is about something.
    assert len(expected.transitions) > PATIENTS
    assert {name for name, *_ in expected.events} >= {"CloseContact", "Negative", "NoSymptom"}
    assert {action for action, *_ in expected.publications} == {
        "NotifyCloseContact",
        "WarnActivation",
    }


ALGEBRA = """
kind: vocabulary
name: v
object: {k: string}
payload: {pid: string, v: int, other: string, happened: int, id: string}
---
{kind: object, name: o, payload: {k: pid}}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a/+, both], set: {k: o.k, v: t.payload.v}, time: t.payload.happened,
         lateness: 5s, id: t.payload.id}
---
kind: event
name: B
attributes: {k: string, v: int, at: timestamp}
packet: {filters: [b/#, both], when: t.payload.v != 3, optional: [v],
         set: {k: t.payload.other, v: t.payload.v, at: e.time}}
---
kind: event
name: Asked
attributes: {k: string, at: int}
request: {set: {k: r.subject, at: r.at}}
---
kind: event
name: Then
attributes: {k: string, a: int, at: timestamp}
pattern: {sequence: [{event: A, as: a}, {event: B, as: b}], by: [k], within: 10s,
          set: {k: a.k, a: a.v, at: b.at}}
---
kind: event
name: Unanswered
attributes: {k: string, a: int}
pattern: {sequence: [{event: A, as: a}, {not: {event: B}, as: b}], by: [k], within: 10s,
          set: {k: a.k, a: a.v}}
---
kind: event
name: Thrice
attributes: {k: string, v: int}
pattern: {iterate: {event: A}, by: [k], times: 3, within: 10s}
---
kind: event
name: Busy
attributes: {k: string, n: int}
pattern: {aggregate: [{event: A, as: a}, {event: B, as: b}], by: [k], window: {last: 15s},
          values: {n: count()}, where: it.n >= 4, set: {k: it.k, n: it.n}}
---
kind: event
name: Crowd
description: Joins persons.
attributes: {n: int}
pattern: {aggregate: [{event: B}], window: {last: 10s}, values: {n: distinct(it.k)},
          where: it.n >= 4, set: {n: it.n}}
---
kind: event
name: Load
description: Joins persons, and is brought about by their scenarios.
attributes: {n: int}
pattern: {aggregate: [{event: Asked}], window: {last: 20s}, values: {n: count()},
          where: it.n >= 2, set: {n: it.n}}
---
{kind: action, name: tell, event: Asked, topic: "told/{k}", payload: {when: it.at}}
---
{kind: action, name: cry, event: Load, topic: load, payload: {n: it.n}}
---
kind: plan
name: p
situations: [{id: On, level: 1}, {id: Over, level: 2}]
evolutions:
  - {event: Thrice, to: On}
  - {event: Busy, from: On, to: Over, actions: [tell, cry]}
  - {event: Unanswered, from: Over, actions: [tell]}
  - {event: Then, from: On}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""
ODD = Document(
    "stream",
    "house",
    {
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "at", "type": "long"},
            {"name": "pid", "type": "string"},
            {"name": "v", "type": "int", "optional": True},
            {"name": "other", "type": "string", "optional": True},
            {"name": "happened", "type": "long", "optional": True},
            {"name": "id", "type": "string", "optional": True},
        ],
        "time": "at",
    },
)


def _draw(draw: random.Random, count: int) -> Iterable[Message]:
    """Yield messages of few persons: late and repeated ones, clocks that go back."""
    now = 1_700_000_000_000
    for _ in range(count):
        now += draw.choice([0, 100, 700, 2500])
        pid = f"p{draw.randrange(6)}"
        payload: dict[str, Any] = {
            "pid": pid,
            "v": draw.choice([None, 1, 2, 3, 4]),
            "other": draw.choice([pid, pid, f"p{draw.randrange(6)}", None]),
            "happened": now - draw.choice([-500, 0, 0, 1000, 4000, 9000]),
            "id": f"{pid}/{draw.randrange(400)}",
        }
        topic = draw.choice(["a/x", "a/x", "a/x/y", "b", "b/z/z", "both", "$b", "c"])
        yield Message(now - draw.choice([0, 0, 0, 3000]), topic, payload)


def test_every_operator_late_events_and_clocks_that_go_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    definitions = DefinitionSet.build([*read_text(ALGEBRA).documents, ODD])
    messages = list(_draw(random.Random(11), 1500))
    end = max(it.at for it in messages) + 60_000
    expected = _detect_in_line(definitions, messages, end, "k")
    topic = Topic(tmp_path / "log")
    _append(topic, messages)
    topic.append([b"nonsense", b'{"topic": "b", "at": 1, "pid": 7, "v": "high"}'])
    runner = _runner(spark, definitions, 900, topic.folder, tmp_path / "found")
    assert runner.plan.separation.results == {"Crowd", "Load"}
    runner.open()
    runner.catch_up()
    runner.advance(end)
    runner.advance(end)  # nothing is due any more
    runner.close()
    last = ViewFolder(tmp_path / "found").last()
    assert last is not None
    assert last.sequence == 2
    assert (last.totals.read, last.totals.rejected) == (1502, 2)
    found = _read(tmp_path / "found")
    assert found.transitions == expected.transitions
    assert found.publications == expected.publications
    assert found.events == expected.events
    assert {name for name, *_ in expected.events} == {
        "Then", "Unanswered", "Thrice", "Busy", "Crowd", "Load",
    }  # fmt: skip
    assert {it[0] for it in expected.publications} == {"tell", "cry"}
    dead = list(ViewFolder(tmp_path / "found").dead_letters())
    assert [it["offset"] for it in dead] == [1500, 1501]


DAYS_OF_A_ZONE = """
kind: vocabulary
name: v
object: {k: string}
payload: {pid: string, day: string}
subject: {uid: string, ward: int}
---
{kind: object, name: o, payload: {k: pid}}
---
kind: event
name: A
attributes: {k: string, date: int, until: timestamp}
packet: {filters: [a], set: {k: o.k, date: e.time.date(e.zone),
                             until: "timestamp(t.payload.day, e.zone)"}}
---
kind: event
name: Often
attributes: {k: string, n: int, first: int, last: int, until: timestamp}
pattern: {aggregate: [{event: A}], by: [k], window: {each: 1d},
          values: {n: count(), first: min(it.date), last: max(it.date), until: max(it.until)},
          where: it.n >= 3}
---
kind: event
name: Asked
attributes: {k: string, at: int, situation: string}
request: {set: {k: r.subject, at: r.at, situation: r.situation}, optional: [situation]}
---
kind: event
name: Load
description: Joins persons, and is brought about by their scenarios.
attributes: {n: int}
pattern: {aggregate: [{event: Asked}], window: {last: 5h}, values: {n: count()},
          where: it.n >= 2, set: {n: it.n}}
---
{kind: action, name: tell, event: Asked, topic: "told/{k}",
 payload: {when: it.at, now: it.situation}}
---
{kind: action, name: cry, event: Load, topic: load, payload: {n: it.n}}
---
kind: plan
name: p
zone: Pacific/Auckland
situations: [{id: On, level: 1}, {id: Past, level: 2}]
evolutions:
  - {event: Often, to: On, actions: [tell]}
  - {after: 6h, from: On, to: Past, actions: [tell, cry]}
  - {after: 20h, from: Past, actions: [tell]}
---
kind: scenario
name: s
plan: p
attribute: k
subject_filter: s.ward == 1 || s.uid.endsWith("5")
---
{kind: attributes, name: "user:p0", values: {ward: 1}}
---
{kind: attributes, name: "user:p1", values: {ward: 1}}
---
{kind: attributes, name: "user:p2", values: {ward: 2}}
"""
DAY_STREAM = Document(
    "stream",
    "house",
    {
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "at", "type": "long"},
            {"name": "pid", "type": "string"},
            {"name": "day", "type": "string", "optional": True},
        ],
        "time": "at",
    },
)


def test_days_of_a_zone_longest_durations_and_subject_filters(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The clocks of Auckland go back on 5 April 2026: one of the days has 25 hours."""
    definitions = DefinitionSet.build([*read_text(DAYS_OF_A_ZONE).documents, DAY_STREAM])
    draw = random.Random(13)
    now = int(datetime(2026, 4, 1, tzinfo=UTC).timestamp() * 1000)
    messages = []
    for _ in range(600):
        now += draw.choice([0, 60_000, 1_800_000, 3_000_000])
        day = draw.choice(["2026-04-05", "2026-04-04", "2026-04-05T10:00:00Z", "soon", None])
        messages.append(Message(now, "a", {"pid": f"p{draw.randrange(6)}", "day": day}))
    end = now + 40 * 3_600_000
    expected = _detect_in_line(definitions, messages, end, "k")
    topic = Topic(tmp_path / "log")
    _append(topic, messages)
    runner = _runner(spark, definitions, 250, topic.folder, tmp_path / "found")
    assert runner.plan.separation.results == {"Load"}
    runner.open()
    runner.catch_up()
    runner.advance(end)
    runner.close()
    found = _read(tmp_path / "found")
    assert found.transitions == expected.transitions
    assert found.publications == expected.publications
    assert found.events == expected.events
    assert {subject for _, subject in expected.transitions} == {"p0", "p1", "p5"}
    taken = {step[4] for steps in expected.transitions.values() for step in steps}
    assert taken == {0, 1, 2}
    assert {it[0] for it in expected.publications} == {"tell", "cry"}


@pytest.mark.timeout(500)
def test_a_kill_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    definitions = DefinitionSet.build([*read_text(ALGEBRA).documents, ODD])
    messages = list(_draw(random.Random(12), 4000))
    expected = _detect_in_line(definitions, messages, 0, "k")
    (tmp_path / "penstock.yaml").write_text("pipeline: {batch: 100, memory: 1g}\n")
    (tmp_path / "d.yaml").write_text(ALGEBRA + "---\n" + json.dumps(_text_of(ODD)))
    _penstock(tmp_path, "apply", "-f", "d.yaml").check_returncode()
    log = tmp_path / "penstock-data" / "eventlog" / "house"
    _append(Topic(log), messages)
    folder = tmp_path / "penstock-data" / "views" / ".detection" / "house"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "pipeline", "detect", "--stream", "house"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 240
        while ((last := ViewFolder(folder).last()) is None or last.sequence < 2) and (
            time.monotonic() < until
        ):
            assert process.poll() is None, "the detection ended by itself"
            time.sleep(0.05)
        time.sleep(random.Random(3).random())
    finally:
        # The whole session at once: the Java process that Spark started goes with its driver.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert last is not None
    assert last.totals.read < len(messages), "all was done before the kill"
    seen = list(read_published(ViewFolder(folder)))
    (tmp_path / "penstock.yaml").write_text("pipeline: {batch: 2500, memory: 1g}\n")
    done = _penstock(tmp_path, "pipeline", "detect", "--stream", "house", "--once", "--json")
    assert json.loads(done.stdout)["read"] == len(messages)
    found = _read(folder)
    assert found.transitions == expected.transitions
    assert found.publications == expected.publications
    assert found.events == expected.events
    told = _penstock(
        tmp_path, "pipeline", "detected", "--stream", "house", "--rows", "10000", "--json"
    )
    assert len(json.loads(told.stdout)) == sum(map(len, expected.transitions.values()))
    # What readers saw before the kill is still there as it was.
    now = {tuple(it.values()) for it in read_published(ViewFolder(folder))}
    assert {tuple(it.values()) for it in seen} <= now


def test_beside_private_figures_records_are_counted_in_thousands(tmp_path: Path) -> None:
    private = {
        "anonymizer": "differential_privacy",
        "aggregates": [{"name": "n", "mode": "count"}],
        "epsilon": 1,
        "budget": 5,
    }
    body = {"stream": "house", "anonymizers": [private], "window": {"size": "1h"}}
    odd = Document("stream", "house", {**ODD.body, "subject": "pid"})
    made = [json.dumps(_text_of(it)) for it in (odd, Document("view", "figures", body))]
    (tmp_path / "penstock.yaml").write_text("pipeline: {memory: 1g}\n")
    (tmp_path / "d.yaml").write_text("\n---\n".join([ALGEBRA, *made]))
    _penstock(tmp_path, "apply", "-f", "d.yaml").check_returncode()
    topic = Topic(tmp_path / "penstock-data" / "eventlog" / "house")
    _append(topic, list(_draw(random.Random(11), 1500)))
    topic.append([b"nonsense"])
    done = _penstock(tmp_path, "pipeline", "detect", "--stream", "house", "--once", "--json")
    figures = json.loads(done.stdout)
    assert figures.pop("results") > 0
    assert figures == {"read": 1000, "rejected": 0}


def _text_of(document: Document) -> dict[str, Any]:
    return {"kind": document.kind, "name": document.name, **document.body}


def _penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments], cwd=folder, check=False, capture_output=True
    )
