"""What contact tracing costs: 300 patients, 10 days, one sample a second.

Method:
- Every patient moves through the house by a drawn timetable: from room to room every half
  hour on average, and to meals with everybody. Samples are taken second by second,
  patient by patient: 259 million in all, fewer when quick.
- `same_ns` is the best minute in which nobody moved, in nanoseconds of processor time for
  each sample: what a sample costs that changes nothing. `sample_ns` is the mean of all.
- `memory_bytes` is what the stays take at the end, counted by tracemalloc in a copy, with
  what is kept for the next request after everybody was asked for.
- `request_ms` is finding all meetings of one patient, the slowest of all patients.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any, Final

from penstock.cep.presence import DAY, Presence

PATIENTS: Final = 300
ROOMS: Final = 60
GOAL_NS: Final = 1000
GOAL_BYTES: Final = 100_000_000
LIMIT: Final = 4_000_000
START: Final = 20_000 * DAY
MEALS: Final = (8, 12, 18)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure samples, memory and requests."""
    hours = 24 if quick else 240
    draw = random.Random(11)
    names = [f"patient-{number}" for number in range(PATIENTS)]
    presence = Presence(1000, 10 * DAY, LIMIT)
    rooms = [f"room-{number % ROOMS}" for number in range(PATIENTS)]
    spent, best = 0, float("inf")
    step = 60 if quick else 1  # when quick, one minute in sixty is sampled
    for hour in range(hours):
        for minute in range(0, 60, step):
            moved = _move(draw, rooms, hour % 24, minute)
            at = START + (hour * 60 + minute) * 60_000
            taken = _sample(presence, names, rooms, at)
            spent += taken
            if not moved:
                best = min(best, taken)
    samples = PATIENTS * 60 * hours * 60 // step
    now = START + hours * 3_600_000
    slowest = 0
    for name in names[:: 30 if quick else 3]:
        start = time.process_time_ns()
        presence.meetings(name, now)
        slowest = max(slowest, time.process_time_ns() - start)
    return {
        "patients": PATIENTS,
        "days": hours / 24,
        "samples": samples,
        "goal_same_ns": GOAL_NS,
        "same_ns": round(best / (PATIENTS * 60)),
        "sample_ns": round(spent / samples),
        "goal_memory_bytes": GOAL_BYTES,
        "memory_bytes": _measure_memory(presence, names, now),
        "request_ms": round(slowest / 1e6, 2),
    }


def _move(draw: random.Random, rooms: list[str], hour: int, minute: int) -> bool:
    """Let patients change rooms; tell whether anybody did."""
    if hour in MEALS and minute == 0:
        rooms[:] = ["dining-room"] * PATIENTS
        return True
    moved = False
    for number in range(PATIENTS):
        leaves = rooms[number] == "dining-room" and minute >= 40  # noqa: PLR2004 - of the hour
        if leaves or (hour in range(7, 22) and draw.random() < 1 / 30):
            rooms[number] = f"room-{draw.randrange(ROOMS)}"
            moved = True
    return moved


def _sample(presence: Presence, names: list[str], rooms: list[str], at: int) -> int:
    """Take a minute of samples; return the time that it took."""
    add = presence.add
    pairs = list(zip(names, rooms, strict=True))
    add(names[0], rooms[0], at)
    start = time.process_time_ns()
    for second in range(at, at + 60_000, 1000):
        for name, room in pairs:
            add(name, room, second)
    return time.process_time_ns() - start


def _measure_memory(presence: Presence, names: list[str], now: int) -> int:
    """Return what a copy of the stays takes."""
    saved = presence.save()
    copy = Presence(presence.every, presence.within, LIMIT)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    copy.load(saved)
    for name in names:
        copy.meetings(name, now)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before
