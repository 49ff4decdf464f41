"""How many records detection at scale takes, and how large its state is.

Method:
- A stream of the case study's messages in the embedded event log: minute by minute, rooms
  and three vital signs of many patients. One temperature in a few thousand is a symptom.
- The records are taken in, in batches, by the detection that `penstock pipeline detect` runs:
  parsed and bound by Spark's columns, followed in parts by tasks, committed with all state.
  The first batch also starts workers and compiles; `records_per_s` is the best of the others,
  `cpu_us` the least processor time for a record in them, of Spark and all workers.
- `in_line_us` is the processor time of one in-line engine for the same messages in the same
  run, without reading and parsing them: what the rest costs is the difference.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.config import defaults
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.eventlog import EventLog
from penstock.lang.scalars import EPOCH
from penstock.model.document import Document
from penstock.model.kinds import Concern, kinds_of
from penstock.pipeline.detection.runner import DetectionRunner
from penstock.pipeline.detection.tasks import DetectionPlan
from penstock.pipeline.session import open_session
from penstock.pipeline.sources.event_log import TopicSource
from penstock_lab.bench.processes import cpu_seconds

STREAM: Final = "house"
PATIENTS: Final = 1000
ROOMS: Final = 150
START: Final = 1_800_000_000_000
MINUTE: Final = 60_000
FIELDS: Final = {
    "topic": "string",
    "at": "long",
    "pid": "string",
    "temperature": "double",
    "respiratory": "double",
    "saturation": "double",
    "location": "string",
    "result": "boolean",
    "testDate": "string",
    "reqId": "long",
}
ALWAYS: Final = ("topic", "at", "pid")
RULES: Final = ("policies.yaml", "events.yaml", "plans.yaml")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure detection with Spark."""
    patients, batch, batches = (100, 4_000, 2) if quick else (PATIENTS, 40_000, 3)
    definitions = _define()
    messages = list(_draw(patients, batch * batches))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        settings = defaults(Path(name), {}).pipeline
        topic = EventLog(settings.event_log).topic(STREAM)
        spark = open_session(settings)
        try:
            plan = DetectionPlan.find(definitions, STREAM)
            runner = DetectionRunner(
                spark, plan, TopicSource(topic), settings.folder / STREAM, rows=batch
            )
            runner.open()
            rates, costs = [], []
            for start in range(0, len(messages), batch):
                topic.append([json.dumps(it).encode() for it in messages[start : start + batch]])
                began, used = time.monotonic(), cpu_seconds()
                runner.catch_up()
                rates.append(batch / (time.monotonic() - began))
                costs.append((cpu_seconds() - used) / batch * 1e6)
            runner.close()
        finally:
            spark.stop()
        state = [it for it in (settings.folder / STREAM / "engines").rglob("*") if it.is_file()]
        return {
            "patients": patients,
            "batch": batch,
            "records": len(messages),
            "results": runner.totals.published,
            "records_per_s": round(max(rates[1:])),
            "cpu_us": round(min(costs[1:]), 1),
            "in_line_us": round(_measure_in_line(definitions, messages), 1),
            "state_bytes": sum(it.stat().st_size for it in state),
        }


def _define() -> DefinitionSet:
    folder = resources.files("penstock_lab.demo") / "nursing_home"
    documents = [
        document
        for name in RULES
        for document in read_text((folder / name).read_text(encoding="utf-8"), name).documents
        if document.kind in kinds_of(Concern.EVENTS) | {"object"}
    ]
    fields = [
        {"name": name, "type": kind, "optional": name not in ALWAYS}
        for name, kind in FIELDS.items()
    ]
    body = {"fields": fields, "time": "at", "subject": "pid"}
    return DefinitionSet.build([*documents, Document("stream", STREAM, body)])


def _draw(patients: int, count: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(7)
    for number in range(count):
        minute, person = divmod(number, 4 * patients)
        pid, word = f"patient-{person // 4}", person % 4
        fever = draw.random() < 1 / 5000
        said = (
            ("location", {"location": f"room-{(person // 4 + minute // 30) % ROOMS}"}),
            ("physiological/temperature", {"temperature": 39.0 if fever else 36.8}),
            ("physiological/respiratory", {"respiratory": float(draw.randrange(12, 20))}),
            ("physiological/saturation", {"saturation": float(draw.randrange(96, 100))}),
        )
        topic, values = said[word]
        yield {"topic": topic, "at": START + minute * MINUTE, "pid": pid, **values}


def _measure_in_line(definitions: DefinitionSet, messages: list[dict[str, Any]]) -> float:
    """Return microseconds for each message, best of some stretches behind the first."""
    engine = Engine(compile_program(definitions.definitions))
    size = len(messages) // 5
    spent = []
    for start in range(0, len(messages), size):
        packets = [
            Packet(
                it["topic"],
                {"topic": it["topic"], "payload": it},
                {},
                {"patientId": it["pid"]},
                {"time": EPOCH + timedelta(milliseconds=it["at"])},
            )
            for it in messages[start : start + size]
        ]
        began = time.process_time_ns()
        for packet, it in zip(packets, messages[start : start + size], strict=True):
            engine.prepare(packet, it["at"]).commit()
        spent.append((time.process_time_ns() - began) / 1000 / len(packets))
    return min(spent[1:])
