"""What contact tracing costs: 300 patients, 10 days, one sample a second.

Method:
- Every patient moves through the house by a drawn timetable: from room to room every half
  hour on average, and to meals with everybody. Samples are taken second by second,
  patient by patient: 259 million in all, fewer when quick. They come 30 ms late and 30 ms
  early in turns, so that every other second has no sample.
- `same_ns` is what keeping a sample costs that changes nothing: the best minute, without
  its first second, in nanoseconds of processor time for each. `sample_ns` is the mean of all.
- `same_engine_ns` is what the whole way of such a sample through the engine costs: offered
  as a packet, bound, and committed; the best of some seconds, at the end of the ten days.
- `move_us` is what a sample costs that ends a stay, in processor time: the one that a
  hundredth of them exceeded, and the longest. Whoever leaves a meal has met everybody there.
- `memory_bytes` is what stays and sums take at the end, counted by tracemalloc in a copy.
- `opening_ms` is one fever: the case opens, ten days of contacts are summed up, and messages
  to all close contacts are made. Everybody has met everybody at meals. The median and the
  longest of some patients, in processor time, with the collector as the gateway sets it.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from datetime import timedelta
from itertools import cycle
from typing import Any, Final

from penstock.cep.context import EngineLimits
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.presence import Presence
from penstock.lang.scalars import DAY, EPOCH
from penstock_lab.bench.emergencies.collector import settled_collector
from penstock_lab.bench.emergencies.engine import load_program
from penstock_lab.bench.emergencies.goals import at_most

PATIENTS: Final = 300
ROOMS: Final = 60
SECONDS: Final = 20
GOAL_NS: Final = 1000
GOAL_BYTES: Final = 100_000_000
GOAL_OPENING_MS: Final = 10
START: Final = 20_000 * DAY
MEALS: Final = (8, 12, 18)
JITTER: Final = (30, -30)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure samples, memory and requests."""
    hours = 24 if quick else 240
    draw = random.Random(11)
    names = [f"patient-{number}" for number in range(PATIENTS)]
    engine = Engine(load_program())
    (presence,) = engine.presences
    rooms = [f"room-{number % ROOMS}" for number in range(PATIENTS)]
    spent, best = 0, float("inf")
    moves: list[int] = []
    step = 60 if quick else 1  # when quick, one minute in sixty is sampled
    with settled_collector():
        for hour in range(hours):
            for minute in range(0, 60, step):
                before = list(rooms)
                _move(draw, rooms, hour % 24, minute)
                at = START + (hour * 60 + minute) * 60_000
                first = _sample_first(presence, names, rooms, at)
                taken = _sample_rest(presence, names, rooms, at)
                spent += taken + sum(first)
                best = min(best, taken)
                moves += [
                    it for it, old, new in zip(first, before, rooms, strict=True) if old != new
                ]
        now = START + hours * 3_600_000
        way = min(_publish(engine, names, rooms, now + it * 1000) for it in range(SECONDS))
        now += SECONDS * 1000
        openings = sorted(_open_case(engine, name, now) for name in names[:: 30 if quick else 6])
    samples = PATIENTS * 60 * hours * 60 // step
    moves.sort()
    same_ns, memory = round(best / (PATIENTS * 59)), _measure_memory(presence)
    opening = openings[len(openings) // 2][0] / 1e6
    return {
        "goals": {
            "keeping a sample that changes nothing, in ns": at_most(GOAL_NS, same_ns),
            "memory in bytes": at_most(GOAL_BYTES, memory),
            "opening a case, in ms": at_most(GOAL_OPENING_MS, round(opening, 2)),
        },
        "patients": PATIENTS,
        "days": hours / 24,
        "samples": samples,
        "same_ns": same_ns,
        "same_engine_ns": round(way / PATIENTS),
        "sample_ns": round(spent / samples),
        "move_us": {
            "p99": round(moves[len(moves) * 99 // 100] / 1000),
            "longest": round(moves[-1] / 1000),
        },
        "memory_bytes": memory,
        "opening_ms": {
            "p50": round(opening, 2),
            "longest": round(openings[-1][0] / 1e6, 2),
            "told": round(sum(told for _, told in openings) / len(openings)),
        },
    }


def _move(draw: random.Random, rooms: list[str], hour: int, minute: int) -> None:
    """Let patients change rooms."""
    if hour in MEALS and minute == 0:
        rooms[:] = ["dining-room"] * PATIENTS
        return
    for number in range(PATIENTS):
        leaves = rooms[number] == "dining-room" and minute >= 40  # noqa: PLR2004 - of the hour
        if leaves or (hour in range(7, 22) and draw.random() < 1 / 30):
            rooms[number] = f"room-{draw.randrange(ROOMS)}"


def _sample_first(presence: Presence, names: list[str], rooms: list[str], at: int) -> list[int]:
    """Take the first sample of a minute of everybody; return the time that each took."""
    add, now = presence.add, time.process_time_ns
    spent = []
    for name, room in zip(names, rooms, strict=True):
        start = now()
        add(name, room, at)
        spent.append(now() - start)
    return spent


def _sample_rest(presence: Presence, names: list[str], rooms: list[str], at: int) -> int:
    """Take the other samples of a minute; return the time that it took."""
    add = presence.add
    pairs = list(zip(names, rooms, strict=True))
    start = time.process_time_ns()
    for second, jitter in zip(range(1, 60), cycle(JITTER), strict=False):
        moment = at + second * 1000 + jitter
        for name, room in pairs:
            add(name, room, moment)
    return time.process_time_ns() - start


def _publish(engine: Engine, names: list[str], rooms: list[str], at: int) -> int:
    """Let the engine have a sample of everybody; return the time that it took."""
    packets = [
        _make_packet("location", {"pid": name, "location": room}, at)
        for name, room in zip(names, rooms, strict=True)
    ]
    prepare = engine.prepare
    start = time.process_time_ns()
    for packet in packets:
        prepare(packet, at).commit()
    return time.process_time_ns() - start


def _make_packet(topic: str, payload: dict[str, Any], at: int) -> Packet:
    person, moment = payload["pid"], EPOCH + timedelta(milliseconds=at)
    message = {"topic": topic, "payload": payload}
    return Packet(topic, message, {"uid": person}, {"patientId": person}, {"time": moment})


def _open_case(engine: Engine, name: str, now: int) -> tuple[int, int]:
    """Let a patient have a fever; return the time that it took, and how many are told."""
    payload = {"pid": name, "temperature": 39.5}
    packet = _make_packet("physiological/temperature", payload, now)
    start = time.process_time_ns()
    outcome = engine.prepare(packet, now).commit()
    spent = time.process_time_ns() - start
    return spent, len(outcome.publications)


def _measure_memory(presence: Presence) -> int:
    """Return what a copy of the stays and sums takes."""
    saved = presence.save()
    limits = EngineLimits()
    copy = Presence(presence.every, presence.within, limits.stays, limits.pairs)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    copy.load(saved)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before
