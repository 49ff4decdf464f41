"""How requests are accepted: many together, within one transaction and by few statements.

    requests ──▶ known keys? ──▶ rows of requests and progress ──▶ profiles ──▶ prohibitions

Rules that hold here:
- A request has a key of its publisher's: the same key again is the same request, and the same
  key with another content is refused. A refused one changes nothing, and holds up no other.
- Choices count in their order, also those of one person that come together.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UsageError, quote
from penstock.store.consent import WHOLE, Choice, ConsentBook, ProfileChoice
from penstock.store.database import insert_rows
from penstock.store.rights.compliance import SEND
from penstock.store.rights.outbox import Outbox
from penstock.store.rights.tables import (
    ProgressStatus,
    RequestStatus,
    Sealer,
    progress_table,
    requests_table,
    sum_up,
)

CHOICES: Final = frozenset(it.value for it in Choice)
_SAME: Final = ("control", "action", "categories", "subject")
"""What makes two requests under one key the same."""


class KeyReusedError(UsageError):
    """A key names another request already."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What a publisher hands in, resolved against the definitions."""

    publisher: str
    key: str
    control: str
    action: str
    """opt-in, opt-out, or the operation of a stateless control."""
    subject: str
    categories: tuple[str, ...]
    subscribers: Mapping[str, timedelta]
    """The services concerned, and how long each may take."""
    purposes: tuple[str, ...]
    """Purposes that the choice is about; none for a stateless request."""
    notify: tuple[str, ...] = ()
    """How the person is told that all services are done."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a publisher."""

    id: str
    status: RequestStatus
    repeated: bool


class Acceptance:
    """Turns what publishers hand in into rows."""

    def __init__(
        self,
        consent: ConsentBook,
        outbox: Outbox,
        sealer: Sealer,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        self._consent = consent
        self._outbox = outbox
        self._sealer = sealer
        self._clock = clock

    def accept(
        self, connection: Connection, wanted: Sequence[NewRequest], epochs: Sequence[int]
    ) -> list[Accepted | UsageError]:
        """Accept requests, each under its epoch, within a transaction; answer each."""
        now = self._clock()
        marks = {it.subject: self._consent.marks.of(it.subject) for it in wanted}
        known = _find_known(connection, wanted)
        answers: list[Accepted | UsageError] = []
        requests: list[dict[str, Any]] = []
        progress: list[dict[str, Any]] = []
        fresh: list[NewRequest] = []
        for it, epoch in zip(wanted, epochs, strict=True):
            row = _request_row(it, marks[it.subject], now, epoch)
            earlier = known.setdefault((it.publisher, it.key), row)
            if earlier is not row:
                answers.append(_compare(earlier, row))
                continue
            if it.subscribers:
                row["sealed"] = self._sealer.seal(it.subject, row["id"])
            requests.append(row)
            progress.extend(_progress_rows(it, row["id"], now))
            fresh.append(it)
            answers.append(Accepted(row["id"], RequestStatus(row["status"]), repeated=False))
        insert_rows(connection, requests_table, requests)
        insert_rows(connection, progress_table, progress)
        self._choose(connection, [it for it in fresh if it.action in CHOICES], marks)
        for row in requests:
            if row["finished"] is not None:
                self._outbox.notify_within(connection, row)
        return answers

    def _choose(
        self, connection: Connection, wanted: Sequence[NewRequest], marks: Mapping[str, str]
    ) -> None:
        """Bring profiles and prohibitions to what was chosen, in the order of the choices."""
        made = [
            ProfileChoice(
                marks[it.subject], Choice(it.action), _prohibits(it), it.control, it.publisher
            )
            for it in wanted
        ]
        if made:
            self._consent.note_within(connection, made)


def _prohibits(it: NewRequest) -> Mapping[str, Sequence[str]]:
    """Return the purposes of a choice by category; a category is a purpose below those."""
    return {
        category: tuple(purpose for purpose in it.purposes if purpose.endswith(f"/{category}"))
        for category in it.categories
    } or {WHOLE: it.purposes}


def _request_row(it: NewRequest, mark: str, now: datetime, epoch: int) -> dict[str, Any]:
    status = sum_up([ProgressStatus.INIT] * len(it.subscribers))
    return {
        "id": uuid.uuid4().hex, "publisher": it.publisher, "idempotency_key": it.key,
        "control": it.control, "action": it.action, "categories": json.dumps(it.categories),
        "subject": mark, "sealed": None, "status": status.value, "at": now,
        "finished": now if status is RequestStatus.COMPLETED else None, "epoch": epoch,
        "notify": json.dumps(it.notify),
    }  # fmt: skip


def _progress_rows(it: NewRequest, request: str, now: datetime) -> list[dict[str, Any]]:
    return [
        {
            "request": request, "subscriber": name, "status": ProgressStatus.INIT.value,
            "action": SEND, "next_at": now, "attempts": 0, "rounds": 0, "trouble": "",
            "updated": now, "due": now + span,
        }
        for name, span in it.subscribers.items()
    ]  # fmt: skip


def _find_known(
    connection: Connection, wanted: Sequence[NewRequest]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return what the database has under the keys of these requests."""
    columns = requests_table.c
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for publisher in {it.publisher for it in wanted}:
        keys = [it.key for it in wanted if it.publisher == publisher]
        rows = connection.execute(
            sa.select(requests_table).where(
                columns.publisher == publisher, columns.idempotency_key.in_(keys)
            )
        )
        found |= {(publisher, row["idempotency_key"]): dict(row) for row in rows.mappings()}
    return found


def _compare(earlier: Mapping[str, Any], row: Mapping[str, Any]) -> Accepted | UsageError:
    """Answer a request whose key was used before."""
    if any(earlier[name] != row[name] for name in _SAME):
        return KeyReusedError(
            f"the key {quote(row['idempotency_key'])} was used for another request",
            fix="use a new key for each request, and the same one to repeat it",
        )
    return Accepted(earlier["id"], RequestStatus(earlier["status"]), repeated=True)
