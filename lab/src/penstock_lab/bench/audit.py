"""How fast the audit log is: appending, the writer, verifying, proving, finding a person.

Method:
- An entry is a decision as the gateway records it: two pseudonyms, a rule, an epoch, two
  details. Making the entries is part of every figure of appending.
- Every append is one durable transaction: commits wait for the disk. `floor_per_s` is
  what the same machine's disk allows: one-page writes with fsync in a loop.
- Sizes of batches take turns, so that a slow moment of the machine falls on all of them.
- The log then holds the entries of all rounds; verifying, proving and searching work on
  that one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.components import PostgresServer
from penstock.errors import UnavailableError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import Filter, read_last
from penstock.store.audit.signatures import Signer
from penstock.store.audit.verification import check_proof, prove_inclusion, verify
from penstock.store.audit.writer import AuditWriter
from penstock.store.database import Database

GOAL_PER_S = 20_000
BATCHES = (10, 100, 1000, 5000)
PEOPLE = 5000
THREADS = 4


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure both databases; PostgreSQL only if it is installed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results: dict[str, Any] = {
            "goal_per_s": GOAL_PER_S,
            "floor_per_s": _measure_disk(Path(folder)),
            "make_entry_us": _measure_making(),
            "sqlite": _measure(f"sqlite:///{folder}/penstock.db", quick=quick),
        }
    try:
        server = PostgresServer()
    except UnavailableError as error:
        results["postgresql"] = {"missing": str(error)}
    else:
        with server:
            results["postgresql"] = _measure(server.url, quick=quick)
    return results


def _measure(url: str, *, quick: bool) -> dict[str, Any]:
    rounds, per_round = (2, 5_000) if quick else (5, 20_000)
    with Database.open(url) as database:
        log = AuditLog(database, Signer.generate())
        samples = _Samples()
        rates: dict[int, list[float]] = {size: [] for size in (1, *BATCHES)}
        for _ in range(rounds):
            for size, measured in rates.items():
                measured.append(_append_rate(log, samples, size, 100 if size == 1 else per_round))
        appended = {str(size): round(statistics.median(rates[size])) for size in rates}
        through_writer = _writer_rate(log, samples, rounds * per_round)
        return {
            "append_per_s_by_batch": appended,
            "within_goal": max(appended.values()) >= GOAL_PER_S,
            "writer_per_s": through_writer,
            "writer_threads": THREADS,
            **_measure_reading(database, log, samples),
        }


class _Samples:
    """Makes entries, each a little different."""

    def __init__(self) -> None:
        self.people = Pseudonyms(b"benchmark" * 4)
        self._names = [f"person {number}" for number in range(PEOPLE)]
        self._next = 0

    def make(self) -> Entry:
        number = self._next = self._next + 1
        return Entry.make(
            "decision.read",
            Outcome.DENIED if number % 7 == 0 else Outcome.ALLOWED,
            actor=self.people.person(self._names[number % PEOPLE]),
            subject=self.people.person(self._names[number * 7 % PEOPLE]),
            rule=self.people.rule("policy nurses-read-vitals"),
            epoch=number // 1000,
            purpose="care",
            stream="vitals",
        )


def _append_rate(log: AuditLog, samples: _Samples, size: int, count: int) -> float:
    started = time.perf_counter()
    for _ in range(max(1, count // size)):
        log.append([samples.make() for _ in range(size)])
    return max(1, count // size) * size / (time.perf_counter() - started)


def _writer_rate(log: AuditLog, samples: _Samples, count: int) -> int:
    started = time.perf_counter()
    with closing(AuditWriter(log, capacity=10_000)) as writer:

        def submit() -> None:
            for _ in range(count // THREADS):
                writer.submit(samples.make(), timeout=60)

        threads = [threading.Thread(target=submit) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return round(count / (time.perf_counter() - started))


def _measure_reading(database: Database, log: AuditLog, samples: _Samples) -> dict[str, Any]:
    keys = log.signer.public_keys
    started = time.perf_counter()
    verdict = verify(database, keys)
    elapsed = time.perf_counter() - started
    if not verdict.ok:
        raise UnavailableError(f"the log does not verify: {verdict.findings[0].message}")
    places = [verdict.size * part // 101 for part in range(101)]
    proofs = [prove_inclusion(database, keys, place) for place in places]
    someone = Filter(people=samples.people.all_of("person 17"))

    def find() -> None:
        with database.read() as connection:
            read_last(connection, verdict.size, someone)

    return {
        "entries": verdict.size,
        "verify_per_s": round(verdict.size / elapsed),
        "prove_us": _median_us(lambda at: prove_inclusion(database, keys, places[at])),
        "check_proof_us": _median_us(lambda at: check_proof(proofs[at], keys)),
        "find_person_scanned_per_s": round(verdict.size / (_median_us(lambda _: find(), 5) / 1e6)),
    }


def _median_us(action: Callable[[int], object], times: int = 101) -> float:
    measured = []
    for at in range(times):
        started = time.perf_counter()
        action(at)
        measured.append(time.perf_counter() - started)
    return round(statistics.median(measured) * 1e6, 1)


def _measure_making() -> float:
    samples = _Samples()
    for _ in range(PEOPLE):
        samples.make()
    started = time.perf_counter()
    for _ in range(20_000):
        samples.make()
    return round((time.perf_counter() - started) / 20_000 * 1e6, 2)


def _measure_disk(folder: Path) -> int:
    """Count one-page writes with fsync: no durable append can come more often."""
    times = []
    with (folder / "floor").open("wb") as file:
        for _ in range(50):
            started = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return round(1 / statistics.median(times))
