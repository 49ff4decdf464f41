"""Privacy requests: how fast they are accepted durably, and overdue ones found among a million.

Method:
- `acceptance`: a broker with its audit log, as the server has it; 128 threads hand in opt-outs of
  new people, each with two services and one purpose, one request a call. First as fast as
  answers come; then at half of the goal, at times drawn beforehand: a request counts from when
  it was due to its answer, so that one that waits for another is counted with its wait.
- `sweep`: a million open rows of progress, of which one in a hundred is overdue, half of these
  with no retries left; one sweep moves all of them on, and a second one finds nothing.
- Both databases work on the same machine's disk; each commit waits for the disk.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.clock import utc_now
from penstock.components import PostgresServer
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.model.document import Document
from penstock.rights.broker import PrivacyBroker, Submission
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Signer
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.compliance import OverdueRule
from penstock.store.rights.requests import RequestBook
from penstock.store.rights.tables import Sealer
from penstock_lab.bench.load.open import percentile

PARTS = ("acceptance", "sweep")
GOAL_PER_SECOND = {"sqlite": 300.0, "postgresql": 1_000.0}
GOAL_MS = 50.0
GOAL_SWEEP_SECONDS = 5.0
THREADS = 128
OPEN_ROWS = 1_000_000
OVERDUE_ONE_IN = 100
_SECRET = bytes(range(32))
_SERVICE = {"subjects": ["user:x"], "control": "ads", "uri": "https://crm.example/"}
DOCUMENTS = (
    Document("purpose", "marketing", {}),
    Document("control", "ads", {"stateful": True, "purposes": ["marketing"]}),
    Document("control-publisher", "portal", {"subjects": ["user:portal"], "controls": ["ads"]}),
    Document("control-subscriber", "crm", _SERVICE),
    Document("control-subscriber", "mail", _SERVICE),
)


def run(*, quick: bool, only: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts that are asked for."""
    found: dict[str, Any] = {}
    if "acceptance" in only:
        found["acceptance"] = measure_acceptance(quick=quick)
    if "sweep" in only:
        found["sweep"] = measure_sweep(quick=quick)
    return found


@contextmanager
def _databases() -> Iterator[dict[str, Callable[[], str]]]:
    """Give what makes the address of an empty database, for each kind there is."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        numbers = iter(range(100))
        made: dict[str, Callable[[], str]] = {
            "sqlite": lambda: f"sqlite:///{Path(folder)}/{next(numbers)}.db"
        }
        try:
            server = PostgresServer()
        except UnavailableError:
            yield made
            return
        with server:
            made["postgresql"] = lambda: server.url
            yield made


def measure_acceptance(*, quick: bool) -> dict[str, Any]:
    """Measure both databases."""
    seconds = 1.0 if quick else 10.0
    with _databases() as found:
        return {name: _accept(make(), name, seconds) for name, make in found.items()}


def _accept(url: str, name: str, seconds: float) -> dict[str, Any]:
    with Database.open(url) as database:
        consent = ConsentBook(database, SubjectMarks(_SECRET))
        book = RequestBook(database, consent, Sealer(_SECRET))
        definitions = DefinitionSet.build(DOCUMENTS)
        log = AuditLog(database, Signer.generate())
        broker = PrivacyBroker(book, log, Pseudonyms(_SECRET), definitions, 1)
        numbers = iter(range(10_000_000))

        def submit() -> None:
            number = next(numbers)
            given = Submission("portal", f"k{number}", "ads", "opt-out", f"person {number}")
            broker.submit("portal", [given])

        submit()
        fast = _run_closed(submit, seconds)
        goal = GOAL_PER_SECOND[name]
        waits = _run_open(submit, goal / 2, seconds)
    return {
        "accepted_per_s": round(fast, 1),
        "goal_per_s": goal,
        "at_half_of_goal_ms": {
            "p50": round(percentile(waits, 0.5) * 1e3, 2),
            "p99": round(percentile(waits, 0.99) * 1e3, 2),
            "goal_p99": GOAL_MS,
        },
    }


def _run_closed(submit: Callable[[], None], seconds: float) -> float:
    """Return how many calls a second threads made that call as soon as they are answered."""
    counts = [0] * THREADS
    end = time.perf_counter() + seconds

    def work(index: int) -> None:
        while time.perf_counter() < end:
            submit()
            counts[index] += 1

    started = time.perf_counter()
    _run_threads(work)
    return sum(counts) / (time.perf_counter() - started)


def _run_open(submit: Callable[[], None], rate: float, seconds: float) -> list[float]:
    """Return how long each call took from when it was due."""
    random_ = random.Random(1)
    due, moment = [], 0.0
    while moment < seconds:
        moment += random_.expovariate(rate)
        due.append(moment)
    times = iter(due)
    waits: list[float] = []
    started = time.perf_counter()

    def work(_: int) -> None:
        for moment in times:
            time.sleep(max(0.0, started + moment - time.perf_counter()))
            submit()
            waits.append(time.perf_counter() - started - moment)

    _run_threads(work)
    return sorted(waits)


def _run_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_sweep(*, quick: bool) -> dict[str, Any]:
    """Measure both databases."""
    count = 20_000 if quick else OPEN_ROWS
    with _databases() as found:
        return {name: _sweep(make(), count) for name, make in found.items()}


_FILL = (
    """
    INSERT INTO rights_requests (id, publisher, idempotency_key, control, action, categories,
                                 subject, status, at, epoch)
    WITH RECURSIVE n(i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :count)
    SELECT CAST(i AS TEXT), 'p', CAST(i AS TEXT), 'ads', 'opt-out', '[]',
           CAST(i AS TEXT), 'INPROGRESS', :now, 1 FROM n
    """,
    """
    INSERT INTO rights_progress (request, subscriber, status, action, next_at, deadline, attempts,
                                 rounds, trouble, updated, due)
    WITH RECURSIVE n(i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :count)
    SELECT CAST(i AS TEXT), CASE WHEN i % 2 = 0 THEN 'crm' ELSE 'mail' END, 'SENT', 'check',
           CASE WHEN (i / 2) % :one_in = 0 THEN :now ELSE :now + i * 1000000 + 3600000000 END,
           :now, 0, 0, '', :now, :now FROM n
    """,
)


def _sweep(url: str, count: int) -> dict[str, Any]:
    with Database.open(url) as database:
        consent = ConsentBook(database, SubjectMarks(_SECRET))
        book = RequestBook(database, consent, Sealer(_SECRET))
        now = int((utc_now() - timedelta(minutes=1)).timestamp() * 1e6)
        with database.write("bench") as connection:
            for statement in _FILL:
                connection.execute(
                    sa.text(statement), {"count": count, "now": now, "one_in": OVERDUE_ONE_IN}
                )
        rules = {"crm": OverdueRule(2, ("email",)), "mail": OverdueRule(0, ("email",))}
        started = time.perf_counter()
        swept = book.compliance.sweep(rules.__getitem__)
        took = time.perf_counter() - started
        started = time.perf_counter()
        book.compliance.sweep(rules.__getitem__)
        idle = time.perf_counter() - started
    return {
        "open_rows": count,
        "told_again": swept.again,
        "failed": len(swept.failed),
        "sweep_s": round(took, 3),
        "sweep_of_nothing_ms": round(idle * 1e3, 2),
        "goal_s": GOAL_SWEEP_SECONDS,
    }
