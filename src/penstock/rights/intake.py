"""Accepts the requests of concurrent callers in common commits.

    caller ──▶ queue ──▶ whoever has the turn commits for all that wait ──▶ answers

Rules that hold here:
- A commit costs a wait for the disk: those who come while one is under way share the next one.
- An answer is given when the commit is done and gateways keep to it, never before. What fails
  the commit fails all that shared it, and nothing of it is stored; a request that is refused
  fails alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from penstock.errors import UsageError
from penstock.store.audit.entry import Entry
from penstock.store.audit.log import AuditLog
from penstock.store.consent import Choice
from penstock.store.rights.requests import Accepted, NewRequest, RequestBook

TOGETHER: Final = 500
"""The most requests of one commit."""

Record = Callable[[NewRequest, Accepted], Entry]
"""Makes the entry of a request in the audit log."""


class _Batch:
    """What was committed together: its gateways are waited for once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enforced = False

    def await_enforcement(self, book: RequestBook, request: NewRequest) -> None:
        """Return when gateways keep to what was prohibited in this commit."""
        with self._lock:
            if not self._enforced:
                book.await_enforcement([request])
                self._enforced = True


@dataclass(slots=True)
class _Waiting:
    request: NewRequest
    epoch: int
    record: Record
    answer: Accepted | BaseException | None = None
    batch: _Batch | None = None


class Intake:
    """Takes requests in. Threads share it; so do brokers of several epochs."""

    def __init__(self, book: RequestBook, log: AuditLog) -> None:
        self._book = book
        self._log = log
        self._queue: deque[_Waiting] = deque()
        self._turn = threading.Lock()

    def submit(self, request: NewRequest, epoch: int, record: Record) -> Accepted:
        """Accept a request durably, with the entry in the audit log that `record` makes."""
        own = _Waiting(request, epoch, record)
        self._queue.append(own)
        with self._turn:
            # Whoever had the turn before may have done it; else it is among those that wait.
            while own.answer is None:
                self._commit()
        if isinstance(own.answer, BaseException):
            raise own.answer
        if own.batch is not None and request.action == Choice.OPT_OUT:
            # Others commit meanwhile: gateways learn of many choices at once.
            own.batch.await_enforcement(self._book, request)
        return own.answer

    def _commit(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), TOGETHER))]

        def record(connection: Connection, made: Sequence[Accepted | UsageError]) -> None:
            entries = [
                it.record(it.request, answer)
                for it, answer in zip(batch, made, strict=True)
                if isinstance(answer, Accepted) and not answer.repeated
            ]
            if entries:
                self._log.append_within(connection, entries)

        try:
            made: Sequence[Accepted | BaseException] = self._book.submit_each(
                [(it.request, it.epoch) for it in batch], then=record
            )
        except Exception as error:  # noqa: BLE001 - each caller gets it
            made = [error] * len(batch)
        together = _Batch()
        for it, answer in zip(batch, made, strict=True):
            it.batch, it.answer = together, answer
