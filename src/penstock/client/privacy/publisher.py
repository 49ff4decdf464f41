"""The SDK for front ends: choices at once, single requests from an outbox.

    choose ─▶ server ─▶ committed ─▶ the state that is persisted      (the person waits)
    ask ─▶ outbox: a file ─▶ returns                                  (the person goes on)
              └──────────▶ thread ─▶ server, again and again ─▶ accepted, taken out

Rules that hold here:
- Every request has a key from its first moment: however often it is sent, it is one request.
- A choice is tried as often as the publisher's definition says, with waits that double, and no
  longer than a person waits. Then the person is asked to try again: nothing was promised.
- What `ask` has returned from is durable here and is sent until the server has it. Waits double as
  often as the definition says, and then stay. A process that ends leaves it to the next one.
- The outbox names people: its file is its owner's alone, and who was accepted is taken out.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from penstock.client.privacy.transport import (
    RejectedError,
    State,
    Submitted,
    Transport,
    UnreachableError,
    read_states,
    read_submitted,
)
from penstock.errors import UsageError

LONGEST_WAIT: Final = 3_600.0
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS outbox (
    key TEXT PRIMARY KEY, content TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS rejected (
    key TEXT PRIMARY KEY, code TEXT NOT NULL, message TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS known (
    name TEXT PRIMARY KEY, content TEXT NOT NULL);
"""


class RetryPlan(NamedTuple):
    """How often to try again, and the first wait in seconds."""

    retries: int = 5
    gap: float = 1.0

    def wait(self, attempt: int, draw: float) -> float:
        """Return how long to wait after so many attempts: it doubles, with some chance in it."""
        doubled = self.gap * 2.0 ** min(attempt, self.retries, 40)
        return min(doubled, LONGEST_WAIT) * (0.5 + draw / 2)


class Rejected(NamedTuple):
    """A request of the outbox that the server refused for good."""

    key: str
    code: str
    message: str


class Outbox:
    """Requests on their way, in a file of SQLite. Threads may share it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made before SQLite opens it, so that it is never anybody else's to read.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._path = path
        with self._open() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(_TABLES)

    def add(self, content: Mapping[str, Any]) -> None:
        """Keep a request; it is durable when this returns."""
        with self._open() as connection, connection:
            values = (content["key"], json.dumps(dict(content)), time.time())
            connection.execute("INSERT INTO outbox VALUES (?, ?, ?)", values)

    def oldest(self) -> dict[str, Any] | None:
        """Return the request that waits longest."""
        with self._open() as connection:
            row = connection.execute("SELECT content FROM outbox ORDER BY at LIMIT 1").fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def remove(self, key: str, refusal: RejectedError | None = None) -> None:
        """Take a request out; keep why it was refused, without whom it was about."""
        with self._open() as connection, connection:
            connection.execute("DELETE FROM outbox WHERE key = ?", (key,))
            if refusal is not None:
                values = (key, refusal.code, refusal.message, time.time())
                connection.execute("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?)", values)

    def postpone(self, key: str) -> None:
        """Let others go before a request that could not be sent."""
        with self._open() as connection, connection:
            connection.execute("UPDATE outbox SET at = ? WHERE key = ?", (time.time(), key))

    def rejected(self) -> list[Rejected]:
        """Return what the server refused for good."""
        with self._open() as connection:
            rows = connection.execute("SELECT key, code, message FROM rejected ORDER BY at")
            return [Rejected(*row) for row in rows]

    def __len__(self) -> int:
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM outbox").fetchone()[0])

    def recall(self, name: str) -> dict[str, Any] | None:
        """Return what was kept under a name."""
        with self._open() as connection:
            row = connection.execute("SELECT content FROM known WHERE name = ?", (name,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep something that helps while the server is away."""
        with self._open() as connection, connection:
            values = (name, json.dumps(dict(content)))
            connection.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", values)

    def _open(self) -> closing[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")  # who was taken out is gone
        return closing(connection)


class PrivacyPublisher:
    """Hands in what people choose and ask for. Threads may share it."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        outbox: Path | str | None = None,
        patience: float = 60.0,
        sleep: Callable[[float], object] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Wait between tries of one call for `patience` seconds in all: somebody waits for it."""
        self.name = name
        self._patience = patience
        self._transport = transport
        self._draw = draw
        self._plan: RetryPlan | None = None
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._sleep = sleep or self._stopping.wait
        self._outbox = Outbox(Path(outbox)) if outbox is not None else None
        self._thread: threading.Thread | None = None
        if self._outbox is not None:
            self._thread = threading.Thread(target=self._run, name="penstock-outbox", daemon=True)
            self._thread.start()

    # --- choices ---

    def choose(
        self,
        subject: str,
        control: str,
        choice: str,
        categories: Sequence[str] = (),
        *,
        key: str | None = None,
    ) -> Submitted:
        """Hand in opt-in or opt-out; it is committed when this returns, with what holds then.

        `UnreachableError`: it is not known to hold; ask the person to try again.
        """
        content = self._content(subject, control, choice, categories, key)
        return read_submitted(self._persist("submit", content))

    def signal(self, subject: str) -> tuple[Submitted, ...]:
        """Pass a browser's Global Privacy Control on; return what it changed."""
        content = {"publisher": self.name, "key": uuid.uuid4().hex, "subject": subject}
        found = self._persist("signal", content)
        return tuple(read_submitted(it) for it in found.get("requests", []))

    def states(self, subject: str) -> tuple[State, ...]:
        """Return what is persisted of a person's choices: what the front end shows."""
        content = {"publisher": self.name, "subject": subject}
        return read_states(self._persist("offered_states", content).get("states", []))

    def receipt(self, request: str, subject: str) -> dict[str, Any]:
        """Return the signed receipt of a choice, for the person to keep."""
        found = self._persist("receipt", {"request": request, "subject": subject})
        return dict(json.loads(found["json_text"])) if "json_text" in found else found

    def set_contact(self, subject: str, **addresses: str) -> int:
        """Keep where a person can be told: `email`, `mobile`; none: it is forgotten."""
        content = {"publisher": self.name, "subject": subject, **addresses}
        return int(self._persist("contact", content)["addresses"])

    # --- single requests ---

    def ask(
        self,
        subject: str,
        control: str,
        action: str = "delete",
        categories: Sequence[str] = (),
        *,
        key: str | None = None,
    ) -> str:
        """Put a single request into the outbox; return its key. It is durable, and is sent."""
        if self._outbox is None:
            raise UsageError("this publisher has no outbox", fix="give `outbox`, a path")
        content = self._content(subject, control, action, categories, key)
        self._outbox.add(content)
        self._news.set()
        return str(content["key"])

    def waiting(self) -> int:
        """Return how many requests of the outbox the server does not have yet."""
        return 0 if self._outbox is None else len(self._outbox)

    def rejected(self) -> list[Rejected]:
        """Return requests of the outbox that the server refused for good: mistakes to mend."""
        return [] if self._outbox is None else self._outbox.rejected()

    def status(self, request: str) -> dict[str, Any]:
        """Return how far a request is, and each service with it."""
        return self._persist("status", {"request": request})

    def close(self) -> None:
        """Send no more; what waits is sent by the next publisher with this outbox."""
        self._stopping.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- on the way ---

    def _content(
        self, subject: str, control: str, action: str, categories: Sequence[str], key: str | None
    ) -> dict[str, Any]:
        return {
            "publisher": self.name,
            "key": key or uuid.uuid4().hex,
            "control": control,
            "action": action,
            "subject": subject,
            "categories": list(categories),
        }

    def _persist(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Call as often as the plan says, as far as patience lasts."""
        attempt = 0
        left = self._patience
        while True:
            try:
                return self._transport.call(name, content)
            except UnreachableError:
                plan = self.plan()
                wait = plan.wait(attempt, self._draw())
                if attempt >= plan.retries or wait > left:
                    raise
                self._sleep(wait)
                left -= wait
                attempt += 1

    def plan(self) -> RetryPlan:
        """Return how to try again: as the publisher's definition says, as far as it is known."""
        if self._plan is None:
            found: dict[str, Any] | None
            try:
                found = self._transport.call("publisher", {"publisher": self.name})
                if self._outbox is not None:
                    self._outbox.keep("publisher", found)
                self._plan = RetryPlan(int(found["retries"]), float(found["retry_gap"]))
            except (UnreachableError, RejectedError):
                found = self._outbox.recall("publisher") if self._outbox is not None else None
                if found is None:
                    return RetryPlan()
                return RetryPlan(int(found["retries"]), float(found["retry_gap"]))
        return self._plan

    def _run(self) -> None:
        """Send what is in the outbox, until told to stop."""
        attempt = 0
        self.plan()
        while not self._stopping.is_set():
            self._news.clear()
            try:
                sent = self._send_oldest()
            except UnreachableError:
                self._sleep(self.plan().wait(attempt, self._draw()))
                attempt += 1
                continue
            attempt = 0
            if not sent:
                self._news.wait()

    def _send_oldest(self) -> bool:
        outbox = self._outbox
        content = outbox.oldest() if outbox is not None else None
        if outbox is None or content is None:
            return False
        try:
            self._transport.call("submit", content)
        except UnreachableError:
            outbox.postpone(content["key"])
            raise
        except RejectedError as error:
            outbox.remove(content["key"], error)
        else:
            outbox.remove(content["key"])
        return True
