"""How fast the store is: when followers know of a change, changes per second, loading, opening.

Method:
- Followers are processes of their own, three of them. All processes read one clock
  (CLOCK_MONOTONIC is the same for all of a machine).
- A change counts from just before its commit, so the commit itself is in the figure, to
  the moment its follower's `current()` would return it. Each follower gives one figure
  per change. Changes come at random moments, so that polls are met in any phase.
- Both databases work on the same machine's disk; each commit waits for the disk.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.components import PostgresServer
from penstock.errors import UnavailableError
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.documents import Put
from penstock.store.definitions.history import Change, Definitions
from penstock.store.follower import Follower

GOAL_MS = {"sqlite": 200.0, "postgresql": 50.0}
FOLLOWERS = 3
DEFINITIONS = 10_000
LONGEST_GAP = 0.04
READY = "ready"
_FOLLOW = "import sys; from penstock_lab.bench.store import follow; follow(sys.argv[1])"
_OPEN = (
    "import sys; from penstock.store.database import Database; Database.open(sys.argv[1]).close()"
)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure both databases; PostgreSQL only if it is installed."""
    results: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results["sqlite"] = _measure(f"sqlite:///{Path(folder)}/penstock.db", "sqlite", quick)
    try:
        server = PostgresServer()
    except UnavailableError as error:
        results["postgresql"] = {"missing": str(error)}
    else:
        with server:
            results["postgresql"] = _measure(server.url, "postgresql", quick)
    return results


def _measure(url: str, name: str, quick: bool) -> dict[str, Any]:  # noqa: FBT001
    changes = 60 if quick else 400
    started = time.perf_counter()
    database = Database.open(url)
    made = time.perf_counter() - started
    with database:
        definitions = Definitions(database)
        documents = [_document(f"t{number}", number) for number in range(DEFINITIONS)]
        started = time.perf_counter()
        definitions.change(lambda _: [Put(found) for found in documents], actor="b", reason="")
        stored = time.perf_counter() - started
        return {
            "known_to_followers": _measure_followers(url, definitions, changes, GOAL_MS[name]),
            "changes_per_s": _measure_changes(definitions, changes),
            "definitions": DEFINITIONS,
            "store_all_ms": _ms(stored),
            "load_all_ms": _ms(_median(5, lambda: Definitions(database).snapshot())),
            "snapshot_unchanged_us": round(_median(200, definitions.snapshot) * 1e6),
            "current_ns": _measure_current(database),
            "make_ms": _ms(made),
            "open_ms": _ms(_median(10, lambda: Database.open(url).close())),
            "start_python_and_open_ms": _ms(_median(3, lambda: _run_python(_OPEN, url))),
        }


def _measure_followers(
    url: str, definitions: Definitions, changes: int, goal: float
) -> dict[str, Any]:
    followers = [
        subprocess.Popen(
            [sys.executable, "-c", _FOLLOW, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(FOLLOWERS)
    ]
    try:
        for follower in followers:
            if follower.stdout is None or follower.stdout.readline().strip() != READY:
                raise UnavailableError("a follower did not start")
        committed = _change_at_random(definitions, changes)
        told = [
            json.loads(follower.communicate(f"{max(committed)}\n")[0]) for follower in followers
        ]
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()
    delays = [
        (_first(times, epoch) - at) / 1e6 for times in told for epoch, at in committed.items()
    ]
    p99 = statistics.quantiles(delays, n=100)[98]
    return {
        "followers": FOLLOWERS,
        "changes": changes,
        "p50_ms": round(statistics.median(delays), 2),
        "p99_ms": round(p99, 2),
        "max_ms": round(max(delays), 2),
        "goal_p99_ms": goal,
        "within_goal": p99 <= goal,
    }


def _change_at_random(definitions: Definitions, changes: int) -> dict[int, int]:
    """Make changes with random gaps; return when each was about to be committed."""
    committed: dict[int, int] = {}

    def note(connection: object, change: Change) -> None:
        del connection
        committed[change.epoch] = time.monotonic_ns()

    for number in range(changes):
        _put(definitions, number, note)
        time.sleep(random.uniform(0, LONGEST_GAP))
    return committed


def _put(
    definitions: Definitions,
    number: int,
    then: Callable[[object, Change], None] | None = None,
) -> None:
    edits = [Put(_document("changing", number))]
    definitions.change(lambda _: edits, actor="b", reason="", then=then)


def _first(times: Sequence[tuple[int, int]], epoch: int) -> int:
    """Return when this epoch, or a later one that includes it, was known."""
    return min(at for known, at in times if known >= epoch)


def follow(url: str) -> None:
    """Follow in a process of its own; print when each epoch was known.

    Says that it is ready, then waits for a line with the last epoch.
    """
    times: list[tuple[int, int]] = []
    with Database.open(url) as database, Follower(database) as follower:
        follower.wait_for(0, 30)
        follower.subscribe(
            lambda update: times.append((update.snapshot.epoch, time.monotonic_ns()))
        )
        print(READY, flush=True)
        follower.wait_for(int(sys.stdin.readline()), 30)
    print(json.dumps(times), flush=True)


def _measure_changes(definitions: Definitions, changes: int) -> float:
    started = time.perf_counter()
    for number in range(changes):
        _put(definitions, number)
    return round(changes / (time.perf_counter() - started), 1)


def _measure_current(database: Database) -> int:
    calls = 20_000
    with Follower(database) as follower:
        follower.wait_for(0, 30)
        started = time.perf_counter_ns()
        for _ in range(calls):
            follower.current()
        return (time.perf_counter_ns() - started) // calls


def _median(times: int, act: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _run_python(program: str, url: str) -> None:
    subprocess.run([sys.executable, "-c", program, url], check=True)


def _document(name: str, number: int) -> Document:
    """Make a definition of usual size: about 300 bytes."""
    body = {
        "topic": f"wards/{number}/+/temperature",
        "purposes": ["treatment", "research/statistics"],
        "read": [{"role": "nurse", "when": "o.patientId in s.pSet && t.level(1) == s.ward"}],
        "description": "Readings of the sensors at the beds of one ward, once a minute." * 2,
        "number": number,
    }
    return Document("topic", name, body)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
