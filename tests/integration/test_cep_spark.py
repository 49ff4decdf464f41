"""Detection at scale finds what the in-line engine finds, on the same messages.

The messages are those of a nursing home, as its gateway would have recorded them: what
actions published stands among them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.cep.binding import Packet
from penstock.cep.engine import Engine
from penstock.cep.operators import Packet as PacketType
from penstock.cep.operators import Request
from penstock.cep.outcome import Outcome, Publication
from penstock.definitions import DefinitionSet
from penstock.definitions.events import compile_program
from penstock.demo.nursing_home.definitions import make_documents, read_rules, set_pace
from penstock.demo.nursing_home.in_process import InProcess
from penstock.eventlog import Topic
from penstock.generate.nursing_home import House
from penstock.lang.moments import EPOCH
from penstock.model.document import Document
from penstock.pipeline.commits import ViewFolder
from penstock.pipeline.reading import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.detection import DetectionRunner

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


def _detect_in_line(definitions: DefinitionSet, messages: Iterator[Message], end: int) -> Detected:
    program = compile_program(definitions.definitions)
    engine = Engine(program)
    plain = {
        name
        for name, index in program.types.items()
        if isinstance(program.operators[index], PacketType | Request)
    }
    found = Detected({}, Counter(), Counter())

    def note(outcome: Outcome) -> None:
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
        about = {"patientId": payload["pid"]}
        e = {"time": EPOCH + timedelta(milliseconds=at)}
        packet = Packet(topic, {"topic": topic, "payload": payload}, {}, about, e)
        note(engine.offer(packet, at).commit())
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


def _append(topic: Topic, messages: tuple[Message, ...]) -> None:
    topic.append(
        [json.dumps({**it.payload, "topic": it.topic, "at": it.at}).encode() for it in messages]
    )


def _runner(
    spark: SparkSession, definitions: DefinitionSet, folder: Path, rows: int
) -> DetectionRunner:
    from penstock.pipeline.detection import DetectionRunner  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.detection_plan import DetectionPlan  # noqa: PLC0415
    from penstock.pipeline.sources.topic import TopicSource  # noqa: PLC0415

    plan = DetectionPlan.find(definitions, "house")
    source = TopicSource(Topic(folder / "log"))
    return DetectionRunner(spark, plan, source, folder / "found", rows=rows, parts=3)


def test_the_same_is_detected_as_in_line(spark: SparkSession, tmp_path: Path) -> None:
    definitions, messages, end = _record()
    expected = _detect_in_line(definitions, iter(messages), end)
    topic = Topic(tmp_path / "log")
    half = len(messages) // 2
    # In batches whose ends fall anywhere; between two of them everything is started anew.
    _append(topic, messages[:half])
    runner = _runner(spark, definitions, tmp_path, rows=len(messages) // 3)
    runner.open()
    runner.catch_up()
    runner.close()
    _append(topic, messages[half:])
    runner = _runner(spark, definitions, tmp_path, rows=len(messages) // 3)
    runner.open()
    assert runner.next == half
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
