"""The outbox: alerts to teams and notes to people, made with what they tell of, sent later.

    failed, or completed ──▶ notice, in the same transaction ──▶ lease ──▶ worker ──▶ sent
                                                                   └ again after a while ─▶ dead

Rules that hold here:
- A notice is made in the transaction that changes the status it tells of: killed before or after,
  there are both or neither. It is sent at least once.
- Where a person can be told stands in a notice sealed, and only until it is sent.
- What could not be sent stays as a dead letter, until somebody begins it anew.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.store.database import Database
from penstock.store.rights.tables import (
    SealBrokenError,
    Sealer,
    contacts_table,
    notices_table,
    requests_table,
)

AREA: Final = "rights"
_COLUMNS: Final = notices_table.c
_ADDRESSES: Final = {"email": "email", "sms": "mobile"}
"""Which address of a contact a channel takes."""


class NoticeKind(StrEnum):
    """What a notice tells."""

    ALERT = "alert"
    """A service did not do its part: to its contact."""
    DONE = "done"
    """All services did: to the person, or the front end."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that a worker has leased, and what it is about."""

    id: str
    kind: NoticeKind
    channel: str
    subscriber: str
    address: str
    """Where a person is told; empty where nobody knows, or the definitions say it."""
    attempts: int
    request: str
    key: str
    publisher: str
    control: str
    action: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewNotice:
    """What is to be told, by which channel."""

    kind: NoticeKind
    channel: str
    request: str
    subscriber: str = ""
    address: str = ""


class Outbox:
    """The notices in a database."""

    def __init__(
        self, database: Database, sealer: Sealer, *, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock

    def add_within(self, connection: Connection, notices: Sequence[NewNotice]) -> None:
        """Put notices in, within the transaction of what they tell of."""
        now = self._clock()
        rows = []
        for it in notices:
            identity = uuid.uuid4().hex
            rows.append(
                {
                    "id": identity, "kind": it.kind.value, "channel": it.channel,
                    "request": it.request, "subscriber": it.subscriber,
                    "address": self._sealer.seal(it.address, identity) if it.address else None,
                    "next_at": now, "attempts": 0, "trouble": "", "at": now,
                }
            )  # fmt: skip
        if rows:
            connection.execute(notices_table.insert(), rows)

    def notify_within(self, connection: Connection, request: Mapping[str, Any]) -> None:
        """Let a person be told that all services are done, given the row of the request."""
        channels = json.loads(request["notify"])
        if not channels:
            return
        subject, publisher = request["subject"], request["publisher"]
        wanted = sa.select(contacts_table.c.sealed).where(
            contacts_table.c.subject == subject, contacts_table.c.publisher == publisher
        )
        sealed = connection.scalar(wanted)
        place = f"{subject} {publisher}"
        try:
            contact = {} if sealed is None else json.loads(self._sealer.open(sealed, place))
        except SealBrokenError:
            contact = {}  # nobody can be told, and the request is done all the same
        notices = [
            NewNotice(
                NoticeKind.DONE, it, request["id"], address=contact.get(_ADDRESSES.get(it), "")
            )
            for it in channels
        ]
        self.add_within(connection, notices)

    def lease(self, holder: str, limit: int, seconds: float) -> list[Notice]:
        """Take notices that are due, oldest first; nobody else gets them for so long."""
        now = self._clock()
        free = sa.or_(_COLUMNS.leased_until.is_(None), _COLUMNS.leased_until < now)
        due = (
            sa.select(_COLUMNS.id)
            .where(_COLUMNS.next_at <= now, free)
            .order_by(_COLUMNS.next_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            if connection.scalar(due.limit(1)) is None:
                return []  # nobody is kept waiting by a look at an empty outbox
        with self._database.write(AREA) as connection:
            found = connection.scalars(due).all()
            until = now + timedelta(seconds=seconds)
            own = _COLUMNS.id.in_(found)
            connection.execute(
                notices_table.update().where(own).values(holder=holder, leased_until=until)
            )
            wanted = (
                sa.select(notices_table, requests_table)
                .join(requests_table, _COLUMNS.request == requests_table.c.id)
                .where(own)
                .order_by(_COLUMNS.at)
                .set_label_style(sa.LABEL_STYLE_TABLENAME_PLUS_COL)
            )
            return [self._notice(row) for row in connection.execute(wanted)]

    def note_sent(self, notice: Notice) -> None:
        """Note that it was sent; nobody needs to know any more where to."""
        values = {"sent": self._clock(), "next_at": None, "address": None, "trouble": ""}
        self._note(notice.id, values)

    def note_failure(self, notice: Notice, holder: str, again: datetime | None, code: str) -> None:
        """Note that it could not be sent, and when to try again; None: it is given up."""
        values = {"next_at": again, "attempts": notice.attempts + 1, "trouble": code}
        self._note(notice.id, values, _COLUMNS.holder == holder)

    def redrive(self, request: str | None = None) -> int:
        """Begin dead ones anew; return how many there were."""
        dead: list[sa.ColumnElement[bool]] = [_COLUMNS.next_at.is_(None), _COLUMNS.sent.is_(None)]
        if request is not None:
            dead.append(_COLUMNS.request == request)
        values = {"next_at": self._clock(), "attempts": 0, "trouble": ""}
        with self._database.write(AREA) as connection:
            return connection.execute(notices_table.update().where(*dead).values(values)).rowcount

    def of(self, request: str) -> list[Any]:
        """Return the notices of a request: their kinds, channels, and what became of them."""
        wanted = (
            sa.select(
                _COLUMNS.kind, _COLUMNS.channel, _COLUMNS.subscriber, _COLUMNS.sent,
                _COLUMNS.next_at, _COLUMNS.trouble,
            )
            .where(_COLUMNS.request == request)
            .order_by(_COLUMNS.at, _COLUMNS.subscriber, _COLUMNS.channel)
        )  # fmt: skip
        with self._database.read() as connection:
            return list(connection.execute(wanted))

    def _note(self, identity: str, values: dict[str, Any], *where: Any) -> None:
        with self._database.write(AREA) as connection:
            connection.execute(
                notices_table.update()
                .where(_COLUMNS.id == identity, _COLUMNS.sent.is_(None), *where)
                .values(**values, holder=None, leased_until=None)
            )

    def _notice(self, row: Any) -> Notice:
        sealed, identity = row.rights_notices_address, row.rights_notices_id
        try:
            address = "" if sealed is None else self._sealer.open(sealed, identity)
        except SealBrokenError:
            address = ""  # tampered with: it leads nowhere, and becomes a dead letter
        return Notice(
            id=identity,
            kind=NoticeKind(row.rights_notices_kind),
            channel=row.rights_notices_channel,
            subscriber=row.rights_notices_subscriber,
            address=address,
            attempts=row.rights_notices_attempts,
            request=row.rights_notices_request,
            key=row.rights_requests_idempotency_key,
            publisher=row.rights_requests_publisher,
            control=row.rights_requests_control,
            action=row.rights_requests_action,
            at=row.rights_requests_at,
        )
