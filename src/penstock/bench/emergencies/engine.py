"""How many primitive events the in-line engine takes, for the case study's definitions.

Method:
- Packets are made before: readings of the three vital signs and rooms of 300 patients, one
  kind after the other, each patient in turn; rooms come once a second, vital signs once in
  ten seconds. One reading in a thousand is a symptom. The collector of garbage passes the
  packets over, as it would not hold them in a gateway.
- A round offers and commits its packets one by one; actions re-enter. The figure is the
  best round, in events per second of processor time, offer and commit included.
- `goal_events_per_s` is what the design asks for. `offer_us` is binding alone.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from typing import Any, Final

from penstock.cep.binding import Packet
from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events import compile_program
from penstock.lang.moments import EPOCH

GOAL: Final = 200_000
PATIENTS: Final = 300
START: Final = 1_800_000_000_000
ROOMS: Final = 40


def load_program() -> Program:
    """Compile the definitions of the nursing home."""
    folder = resources.files("penstock.demo") / "nursing_home"
    documents = [
        document
        for name in ("policies.yaml", "people.yaml", "events.yaml", "plans.yaml")
        for document in read_text((folder / name).read_text(), name).documents
    ]
    return compile_program(DefinitionSet.build(documents).definitions)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure offering and committing."""
    rounds, seconds = (3, 60) if quick else (10, 120)
    engine = Engine(load_program())
    draw = random.Random(7)
    made = [list(_packets(draw, START + number * seconds * 1000, seconds))
            for number in range(rounds + 1)]  # fmt: skip
    gc.collect()
    gc.freeze()
    try:
        _play(engine, made[0])  # fills the windows
        best = min(_play(engine, packets) / len(packets) for packets in made[1:])
        binding = min(_bind(engine, packets) / len(packets) for packets in made[1:])
    finally:
        gc.unfreeze()
    return {
        "patients": PATIENTS,
        "events": sum(map(len, made[1:])),
        "goal_events_per_s": GOAL,
        "events_per_s": round(1e9 / best),
        "event_us": round(best / 1000, 2),
        "offer_us": round(binding / 1000, 2),
        "snapshot_bytes": len(engine.save()),
        "active_cases": sum(1 for _ in engine.situations()),
    }


def _packets(draw: random.Random, start: int, seconds: int) -> Iterator[tuple[Packet, int]]:
    for second in range(seconds):
        at = start + second * 1000
        moment = EPOCH + timedelta(milliseconds=at)
        for number in range(PATIENTS):
            pid = f"patient-{number}"
            room = f"room-{(number + (start + second * 1000) // 1_800_000) % ROOMS}"
            readings: list[tuple[str, str, Any]] = [("location", "location", room)]
            if (second + number) % 10 == 0:
                ill = draw.random() < 1 / 3000
                readings += [
                    ("physiological/temperature", "temperature", 39.0 if ill else 36.5),
                    ("physiological/respiratory", "respiratory", float(draw.randrange(12, 20))),
                    ("physiological/saturation", "saturation", float(draw.randrange(96, 100))),
                ]
            for topic, word, value in readings:
                message = {"topic": topic, "payload": {"pid": pid, word: value}}
                yield Packet(topic, message, {"uid": pid}, {"patientId": pid}, {"time": moment}), at


def _play(engine: Engine, packets: list[tuple[Packet, int]]) -> int:
    offer = engine.offer
    start = time.process_time_ns()
    for packet, at in packets:
        outcome = offer(packet, at).commit()
        for it in outcome.publications:
            message = {"topic": it.topic, "payload": it.payload}
            again = Packet(it.topic, message, {}, {"patientId": it.payload["pid"]}, packet.e)
            offer(again, at).commit()
    return time.process_time_ns() - start


def _bind(engine: Engine, packets: list[tuple[Packet, int]]) -> int:
    offer = engine.offer
    start = time.process_time_ns()
    for packet, at in packets:
        offer(packet, at)
    return time.process_time_ns() - start
