"""How many primitive events the in-line engine takes, for the case study's definitions.

Method:
- Readings of 300 patients, second by second: `vital_signs` has the three vital signs of
  everybody, `all` their rooms, too. One temperature in a few thousand is a symptom; what
  actions publish re-enters.
- The packets of a second are made right before they are offered and committed one by one:
  a gateway, too, has just read what it offers. Only offering and committing is timed, in
  processor time; the figure is the best of some rounds of whole seconds.
- `offer_us` is binding alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from typing import Any, Final

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.lang.scalars import EPOCH
from penstock_lab.bench.emergencies.collector import settled_collector
from penstock_lab.bench.emergencies.goals import at_least

GOAL: Final = 200_000
PATIENTS: Final = 300
START: Final = 1_800_000_000_000
ROOMS: Final = 40
VITAL_SIGNS: Final = ("temperature", "respiratory", "saturation")
MIXES: Final = {"vital_signs": VITAL_SIGNS, "all": ("location", *VITAL_SIGNS)}


def load_program() -> Program:
    """Compile the definitions of the nursing home."""
    folder = resources.files("penstock_lab.demo") / "nursing_home"
    documents = [
        document
        for name in ("policies.yaml", "people.yaml", "events.yaml", "plans.yaml")
        for document in read_text((folder / name).read_text(), name).documents
    ]
    return compile_program(DefinitionSet.build(documents).definitions)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure offering and committing."""
    rounds, seconds = (3, 20) if quick else (6, 30)
    program = load_program()
    figures: dict[str, Any] = {"patients": PATIENTS}
    with settled_collector():
        for name, words in MIXES.items():
            figures[name] = _measure(Engine(program), words, rounds, seconds)
    figures["goals"] = {
        f"{name}, events per second": at_least(GOAL, figures[name]["events_per_s"])
        for name in MIXES
    }
    return figures


def _measure(engine: Engine, words: tuple[str, ...], rounds: int, seconds: int) -> dict[str, Any]:
    draw = random.Random(7)
    best = binding = float("inf")
    for number in range(-1, rounds):  # the first one fills the windows
        spent = bound = count = 0
        for second in range(seconds):
            at = START + (number * seconds + second) * 1000
            packets = list(_packets(draw, at, words))
            count += len(packets)
            bound += _bind(engine, packets, at)
            spent += _play(engine, packets, at)
        if number >= 0:
            best, binding = min(best, spent / count), min(binding, bound / count)
    return {
        "events_per_s": round(1e9 / best),
        "event_us": round(best / 1000, 2),
        "offer_us": round(binding / 1000, 2),
        "snapshot_bytes": len(engine.save()),
        "active_cases": sum(1 for _ in engine.situations()),
    }


def _packets(draw: random.Random, at: int, words: tuple[str, ...]) -> Iterator[Packet]:
    moment = EPOCH + timedelta(milliseconds=at)
    for number in range(PATIENTS):
        pid = f"patient-{number}"
        values = {
            "location": f"room-{(number + at // 1_800_000) % ROOMS}",
            "temperature": 39.0 if draw.random() < 1 / 5000 else draw.randrange(360, 374) / 10,
            "respiratory": float(draw.randrange(12, 20)),
            "saturation": float(draw.randrange(96, 100)),
        }
        for word in words:
            topic = word if word == "location" else f"physiological/{word}"
            message = {"topic": topic, "payload": {"pid": pid, word: values[word]}}
            yield Packet(topic, message, {"uid": pid}, {"patientId": pid}, {"time": moment})


def _play(engine: Engine, packets: list[Packet], at: int) -> int:
    prepare = engine.prepare
    start = time.process_time_ns()
    for packet in packets:
        outcome = prepare(packet, at).commit()
        for it in outcome.publications:
            message = {"topic": it.topic, "payload": it.payload}
            again = Packet(it.topic, message, {}, {"patientId": it.payload["pid"]}, packet.e)
            prepare(again, at).commit()
    return time.process_time_ns() - start


def _bind(engine: Engine, packets: list[Packet], at: int) -> int:
    prepare = engine.prepare
    start = time.process_time_ns()
    for packet in packets:
        prepare(packet, at)
    return time.process_time_ns() - start
