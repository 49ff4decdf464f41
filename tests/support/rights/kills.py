"""Kills publishers and workers of privacy requests at named points, and checks what is left.

Run as a program of its own: one process with a single thread imports everything once and forks
from there. It prints a line of JSON.

    kills.py SEED KILLS URL FOLDER

Each child is killed by itself, with SIGKILL, at one of the points, the first, second or third time
that it comes there. Services are real HTTP, in a process of their own, which writes down what it
is told before it answers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import alembic.command  # noqa: F401 (loaded before the forks, not in each of them)
import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.components.processes import accepts, free_port
from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.model.kinds import ControlSubscriber
from penstock.rights.dispatch import Channels, open_caller
from penstock.rights.dispatch.message import IDEMPOTENCY_KEY, Dispatched, Notification
from penstock.rights.notices import NoticeSender
from penstock.rights.worker import RightsWorker
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.requests import NewRequest, RequestBook
from penstock.store.rights.tables import (
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    Sealer,
    notices_table,
    progress_table,
    requests_table,
)
from tests.support.rights.office import SECRET, configure

PUBLISHER_POINTS = ("before-commit", "after-commit")
WORKER_POINTS = ("before-send", "after-send", "before-recording", "after-recording")
POINTS = (*PUBLISHER_POINTS, *WORKER_POINTS)
LEASE = 0.4
TOGETHER = 3
PATIENCE = 600  # a note that failed four times in a row waits for more than a minute
RANK = {
    ProgressStatus.INIT: 0, ProgressStatus.SENT: 1, ProgressStatus.ACKNOWLEDGED: 2,
    ProgressStatus.SENDFAILED: 3, ProgressStatus.FAILED: 3, ProgressStatus.COMPLETED: 4,
}  # fmt: skip
REQUEST_RANK = {
    RequestStatus.INIT: 0, RequestStatus.INPROGRESS: 1, RequestStatus.SOMEFAILED: 2,
    RequestStatus.COMPLETED: 3,
}  # fmt: skip


class Trap:
    """Kills this process at a point, the n-th time that it comes there."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class TrappedDatabase(Database):
    """A database whose commits are points."""

    trap = Trap("", 0)
    names = PUBLISHER_POINTS
    counts = True

    @contextmanager
    def write(self, area: str = "store") -> Iterator[Connection]:
        with super().write(area) as connection:
            yield connection
            if self.counts:
                self.trap.reach(self.names[0])
        if self.counts:
            self.trap.reach(self.names[1])


class TrappedDispatcher:
    """Channels whose sends are points; what is recorded after one is another."""

    def __init__(self, inner: Channels, database: TrappedDatabase) -> None:
        self._inner = inner
        self._database = database

    def send(self, subscriber: ControlSubscriber, notification: Notification) -> Dispatched:
        self._database.trap.reach("before-send")
        made = self._inner.send(subscriber, notification)
        self._database.trap.reach("after-send")
        self._database.counts = True
        return made


def open_book(database: Database) -> RequestBook:
    return RequestBook(database, ConsentBook(database, SubjectMarks(SECRET)), Sealer(SECRET))


def make_definitions(port: int) -> DefinitionSet:
    def service(delivery: str) -> dict[str, Any]:
        return {
            "subjects": ["user:x"], "control": "forget", "delivery": delivery,
            "uri": f"http://127.0.0.1:{port}/", "retry_gap": 10, "longest_gap": 50,
            "send_retries": 100,
        }  # fmt: skip

    front = {
        "subjects": ["user:app"], "controls": ["forget"], "notify": ["in-client"],
        "endpoint": f"http://127.0.0.1:{port}/done",
    }  # fmt: skip
    return DefinitionSet.build(
        [
            Document("control", "forget", {"stateful": False, "operation": "delete"}),
            Document("control-publisher", "app", front),
            Document("control-subscriber", "at-once", service("http-sync")),
            Document("control-subscriber", "later", service("http")),
        ]
    )


def serve(port: int, told: Path) -> None:
    """Write down the key of every call, then answer; one in five calls fails after that."""

    class Handler(BaseHTTPRequestHandler):
        calls = 0

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{self.path} {self.headers[IDEMPOTENCY_KEY]}\n".encode())
            os.close(descriptor)
            Handler.calls += 1
            self.send_response(500 if Handler.calls % 5 == 0 else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


class Watch:
    """Starts children that are killed, and compares the store with what was promised."""

    def __init__(self, url: str, folder: Path, random_: random.Random) -> None:
        self.url = url
        self.random = random_
        self.told = folder / "told"
        self.acknowledged = folder / "acknowledged"
        port = free_port()
        self.definitions = make_definitions(port)
        self.service = fork(lambda: serve(port, self.told))
        while not accepts(port):
            time.sleep(0.01)
        self.keys: list[str] = []
        self.ranks: dict[tuple[str, str], int] = {}
        self.kills: Counter[str] = Counter()
        self.problems: list[str] = []
        Database.open(url).close()

    def expect(self, holds: bool, problem: str) -> None:  # noqa: FBT001
        if not holds:
            self.problems.append(problem)

    def publish(self, point: str, number: int, keys: list[str]) -> None:
        """Hand in requests, and write each down once it was accepted."""
        with TrappedDatabase.open(self.url) as database:
            database.trap = Trap(point, number)
            book = open_book(database)
            for key in keys:
                spans = dict.fromkeys(("at-once", "later"), timedelta(days=1))
                wanted = NewRequest(
                    "app", key, "forget", "delete", f"p{key}", (), spans, (), ("in-client",)
                )
                (made,) = book.submit([wanted], 1)
                with self.acknowledged.open("a") as file:
                    file.write(f"{key} {made.id}\n")

    def work(self, point: str = "", number: int = 0) -> None:
        """Tell services, until nothing is left to do."""
        with TrappedDatabase.open(self.url) as database:
            database.trap, database.counts = Trap(point, number), False
            database.names = ("before-recording", "after-recording")
            book, config = open_book(database), configure(timeout=5)
            dispatcher = TrappedDispatcher(Channels.open(config, SECRET), database)
            sender = NoticeSender.open(config, SECRET, open_caller(config))
            worker = RightsWorker(book, lambda: self.definitions, dispatcher, sender, lease=LEASE)
            latest = time.monotonic() + PATIENCE
            while self.is_due(database) and time.monotonic() < latest:
                if not worker.run_once():
                    time.sleep(0.02)

    @staticmethod
    def is_due(database: Database) -> bool:
        rows, notices = progress_table.c, notices_table.c
        open_ = sa.select(rows.request).where(rows.action == "send", rows.next_at.is_not(None))
        unsent = sa.select(notices.id).where(notices.next_at.is_not(None))
        with database.read() as connection:
            return any(connection.execute(it.limit(1)).first() for it in (open_, unsent))

    def kill_one(self, point: str) -> None:
        number = self.random.randint(1, TOGETHER)
        if point in PUBLISHER_POINTS:
            keys = [f"{len(self.keys) + it}" for it in range(TOGETHER)]
            self.keys += keys
            pid = fork(lambda: self.publish(point, number, keys))
        else:
            pid = fork(lambda: self.work(point, number))
        ending = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.expect(ending in {0, -signal.SIGKILL}, f"{point}: a child ended with {ending}")
        self.kills[point] += ending == -signal.SIGKILL
        self.check()

    def check(self) -> None:
        """Check that nothing accepted is gone, and nothing went backwards."""
        with Database.open(self.url) as database, database.read() as connection:
            requests = connection.execute(sa.select(requests_table)).all()
            progress = connection.execute(sa.select(progress_table)).all()
        known = {row.idempotency_key: row.id for row in requests}
        self.expect(len(known) == len(requests), "a key names two requests")
        for line in self.acknowledged.read_text().splitlines():
            key, identity = line.split()
            self.expect(known.get(key) == identity, f"request {key} is lost")
        self.expect(len(progress) == 2 * len(requests), "a request without its progress")
        ranks = {(row.id, ""): REQUEST_RANK[RequestStatus(row.status)] for row in requests}
        ranks |= {(it.request, it.subscriber): RANK[ProgressStatus(it.status)] for it in progress}
        for place, rank in self.ranks.items():
            self.expect(ranks[place] >= rank, f"{place} went backwards")
        self.ranks = ranks

    def finish(self) -> None:
        """Repeat what publishers may not have heard of, let all be done, and check the whole."""
        self.publish("", 0, self.keys)
        self.work()
        self.check()
        with Database.open(self.url) as database:
            book = open_book(database)
            for line in set(self.acknowledged.read_text().splitlines()):
                book.note(line.split()[1], "later", ProgressEvent.COMPLETED)
        self.work()
        self.check()
        told = Counter(self.told.read_text().splitlines())
        with Database.open(self.url) as database, database.read() as connection:
            requests = connection.execute(sa.select(requests_table)).all()
            notices = connection.execute(sa.select(notices_table)).all()
        self.expect(len(requests) == len(self.keys), "not each key is one request")
        self.expect(len(notices) == len(requests), "not each request has one notice")
        for row in requests:
            self.expect(row.status == RequestStatus.COMPLETED, f"{row.id} is {row.status}")
            for name in ("at-once", "later"):
                self.expect(told[f"/ {row.id}/{name}"] > 0, f"{name} was not told of {row.id}")
        for it in notices:
            self.expect(it.sent is not None, "a notice was not sent")
            self.expect(told[f"/done {it.id}"] > 0, "a notice did not arrive")


def main(seed: str, kills: str, url: str, folder: str) -> None:
    """Run, and print the outcome."""
    watch = Watch(url, Path(folder), random.Random(int(seed)))
    try:
        watch.acknowledged.touch()
        while not watch.problems and (
            watch.kills.total() < int(kills) or any(not watch.kills[it] for it in POINTS)
        ):
            watch.kill_one(min(PUBLISHER_POINTS, key=lambda it: watch.kills[it]))
            watch.kill_one(min(WORKER_POINTS, key=lambda it: watch.kills[it]))
        watch.finish()
    finally:
        os.kill(watch.service, signal.SIGKILL)
    outcome = {
        "kills": watch.kills, "requests": len(watch.keys), "problems": watch.problems[:20]
    }  # fmt: skip
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
