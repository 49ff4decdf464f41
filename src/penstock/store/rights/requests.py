"""Privacy requests in a database: accepted in one transaction, worked on under leases.

    submit ──▶ request + progress rows + profile + consent, one transaction ──▶ accepted
    lease  ──▶ due rows, for a while ──▶ worker ──▶ note: what happened, and what comes next

Rules that hold here:
- What was accepted is durable together with everything that follows from it. The prohibition of a
  purpose holds when `submit` has returned.
- A request has a key of its publisher's: the same key again is the same request, and the same
  key with another content is refused.
- A lease is for a while. What its holder notes afterwards still counts if it says what the
  service did; it schedules nothing once another holds the row.
- No name is in the tables: a person is found by a mark; who it is stands sealed, and only until
  the request is finished.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.clock import utc_now
from penstock.errors import UsageError, quote
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.rights.profiles import Profiles
from penstock.store.rights.progress import (
    LOST,
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    advance,
    sum_up,
)
from penstock.store.rights.sealing import Sealer
from penstock.store.rights.tables import progress_table, requests_table

AREA: Final = "rights"
SEND: Final = "send"
CHECK: Final = "check"


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
    subscribers: tuple[str, ...]
    purposes: tuple[str, ...]
    """Purposes that the choice is about; none for a stateless request."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a publisher."""

    id: str
    status: RequestStatus
    repeated: bool


@dataclass(frozen=True, slots=True)
class Work:
    """A progress row that a worker has leased."""

    request: str
    subscriber: str
    status: ProgressStatus
    action: str
    attempts: int
    rounds: int
    control: str
    request_action: str
    categories: tuple[str, ...]
    publisher: str
    at: datetime


class RequestBook:
    """The requests in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        consent: ConsentBook,
        sealer: Sealer,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.profiles = Profiles(database, consent.marks, sealer, clock=clock)
        self._database = database
        self._consent = consent
        self._sealer = sealer
        self._clock = clock

    # --- in ---

    def submit(
        self,
        requests: Sequence[NewRequest],
        epoch: int,
        then: Callable[[Connection, Sequence[Accepted]], None] | None = None,
    ) -> list[Accepted]:
        """Accept requests, all or none; `then` writes further rows into their transaction."""
        with self._database.write(AREA) as connection:
            made = [self._accept(connection, request, epoch) for request in requests]
            if then is not None:
                then(connection, made)
        return made

    def _accept(self, connection: Connection, request: NewRequest, epoch: int) -> Accepted:
        subject = self._consent.marks.of(request.subject)
        earlier = self._find_repeated(connection, request, subject)
        if earlier is not None:
            return earlier
        now, identity = self._clock(), uuid.uuid4().hex
        status = sum_up([ProgressStatus.INIT] * len(request.subscribers))
        finished = status is RequestStatus.COMPLETED
        connection.execute(
            requests_table.insert().values(
                id=identity, publisher=request.publisher, idempotency_key=request.key,
                control=request.control, action=request.action,
                categories=json.dumps(request.categories), subject=subject,
                sealed=None if finished else self._sealer.seal(request.subject, identity),
                status=status.value, at=now, finished=now if finished else None, epoch=epoch,
            )
        )  # fmt: skip
        if request.subscribers:
            connection.execute(
                progress_table.insert(),
                [
                    {
                        "request": identity, "subscriber": name, "status": ProgressStatus.INIT,
                        "action": SEND, "next_at": now, "attempts": 0, "rounds": 0,
                        "trouble": "", "updated": now,
                    }
                    for name in request.subscribers
                ],
            )  # fmt: skip
        if request.action in set(Choice):
            self.profiles.choose_within(
                connection, subject, request.control, request.categories, request.action
            )
            for purpose in request.purposes:
                choice = Choice(request.action)
                self._consent.choose_within(connection, choice, [request.subject], purpose)
        return Accepted(identity, status, repeated=False)

    @staticmethod
    def _find_repeated(
        connection: Connection, request: NewRequest, subject: str
    ) -> Accepted | None:
        columns = requests_table.c
        row = connection.execute(
            sa.select(requests_table).where(
                columns.publisher == request.publisher, columns.idempotency_key == request.key
            )
        ).one_or_none()
        if row is None:
            return None
        given = (request.control, request.action, json.dumps(request.categories), subject)
        if given != (row.control, row.action, row.categories, row.subject):
            raise KeyReusedError(
                f"the key {quote(request.key)} was used for another request",
                fix="use a new key for each request, and the same one to repeat it",
            )
        return Accepted(row.id, RequestStatus(row.status), repeated=True)

    # --- work ---

    def lease(self, holder: str, limit: int, seconds: float) -> list[Work]:
        """Take rows that are due, oldest first; nobody else gets them for so long."""
        now, rows = self._clock(), progress_table.c
        free = sa.or_(rows.leased_until.is_(None), rows.leased_until < now)
        due = (
            sa.select(rows.request, rows.subscriber)
            .where(rows.next_at <= now, free)
            .order_by(rows.next_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        with self._database.write(AREA) as connection:
            found = connection.execute(due).all()
            if not found:
                return []
            keys = sa.tuple_(rows.request, rows.subscriber).in_([tuple(it) for it in found])
            connection.execute(
                progress_table.update()
                .where(keys)
                .values(holder=holder, leased_until=now + timedelta(seconds=seconds))
            )
            wanted = (
                sa.select(progress_table, requests_table)
                .join(requests_table, rows.request == requests_table.c.id)
                .where(keys)
                .order_by(rows.next_at)
            )
            return [_work(row) for row in connection.execute(wanted.set_label_style(_LABELS))]

    def note(
        self,
        request: str,
        subscriber: str,
        event: ProgressEvent | None,
        *,
        holder: str | None = None,
        **plan: Any,
    ) -> ProgressStatus | None:
        """Note what happened, and what comes next; None where there is no such row.

        With `holder`, nothing but the event is noted once another holds the row. What a service
        says by itself plans nothing, and leaves the lease to the worker that is telling it.
        """
        now, rows = self._clock(), progress_table.c
        key = sa.and_(rows.request == request, rows.subscriber == subscriber)
        with self._database.write(AREA) as connection:
            found = connection.execute(
                sa.select(progress_table).where(key).with_for_update()
            ).one_or_none()
            if found is None:
                return None
            before = ProgressStatus(found.status)
            after = before if event is None else advance(before, event)
            if event is ProgressEvent.REDRIVEN and after is before:
                return after  # not failed: there is nothing to begin anew
            values: dict[str, Any] = {"status": after.value, "updated": now}
            if plan if holder is None else found.holder == holder:
                values |= plan | {"holder": None, "leased_until": None}
            if after in _FINAL:
                values["next_at"] = None
            connection.execute(progress_table.update().where(key).values(values))
            if after is not before:
                self._sum_up(connection, request, now)
        return after

    def _sum_up(self, connection: Connection, request: str, now: datetime) -> None:
        rows = progress_table.c
        found = connection.scalars(sa.select(rows.status).where(rows.request == request))
        status = sum_up(map(ProgressStatus, found))
        values: dict[str, Any] = {"status": status.value, "finished": None}
        if status is RequestStatus.COMPLETED:
            # Nobody needs to be told any more who it was about.
            values |= {"finished": now, "sealed": None}
        connection.execute(
            requests_table.update().where(requests_table.c.id == request).values(values)
        )

    def redrive(self, keys: Iterable[tuple[str, str]]) -> int:
        """Begin failed ones anew; return how many there were."""
        now = self._clock()
        plan: dict[str, Any] = {
            "action": SEND, "next_at": now, "attempts": 0, "rounds": 0, "trouble": ""
        }  # fmt: skip
        again = 0
        for request, subscriber in keys:
            after = self.note(request, subscriber, ProgressEvent.REDRIVEN, **plan)
            again += after is ProgressStatus.INIT
        return again

    # --- looking ---

    def subject_of(self, request: str) -> str | None:
        """Return whom an unfinished request is about; None where it is finished or unknown."""
        wanted = sa.select(requests_table.c.sealed).where(requests_table.c.id == request)
        with self._database.read() as connection:
            sealed = connection.scalar(wanted)
        return None if sealed is None else self._sealer.open(sealed, request)

    def newest(
        self,
        *,
        status: RequestStatus | None = None,
        limit: int = 100,
        publisher: str | None = None,
        after: str | None = None,
    ) -> Sequence[tuple[Any, int, int]]:
        """Return requests, newest first, with their number of services and how many are done.

        `after` names the last one that was seen of the same list.
        """
        rows, own = progress_table.c, requests_table.c
        done = sa.func.count(sa.case((rows.status == ProgressStatus.COMPLETED.value, 1)))
        wanted = (
            sa.select(requests_table, sa.func.count(rows.request), done)
            .outerjoin(progress_table, rows.request == own.id)
            .group_by(*requests_table.primary_key.columns, *requests_table.columns)
            .order_by(own.at.desc(), own.id)
            .limit(limit)
        )
        if status is not None:
            wanted = wanted.where(own.status == status.value)
        if publisher is not None:
            wanted = wanted.where(own.publisher == publisher)
        if after is not None:
            seen = requests_table.alias("seen")
            at = sa.select(seen.c.at).where(seen.c.id == after, seen.c.publisher == own.publisher)
            last = at.correlate(requests_table).scalar_subquery()
            wanted = wanted.where(sa.or_(own.at < last, sa.and_(own.at == last, own.id > after)))
        with self._database.read() as connection:
            return [(row, row[-2], row[-1]) for row in connection.execute(wanted)]

    def find_by_key(self, publisher: str, key: str) -> str | None:
        """Return the request that a publisher named by a key."""
        own = requests_table.c
        wanted = sa.select(own.id).where(own.publisher == publisher, own.idempotency_key == key)
        with self._database.read() as connection:
            return connection.scalar(wanted)

    def lost(self, request: str | None = None) -> Sequence[tuple[str, str]]:
        """Return which services failed which requests."""
        rows = progress_table.c
        wanted = sa.select(rows.request, rows.subscriber).where(
            rows.status.in_([it.value for it in LOST])
        )
        if request is not None:
            wanted = wanted.where(rows.request == request)
        with self._database.read() as connection:
            return [(row.request, row.subscriber) for row in connection.execute(wanted)]

    def show(self, request: str) -> tuple[Any, list[Any]] | None:
        """Return a request and its progress."""
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(requests_table).where(requests_table.c.id == request)
            ).one_or_none()
            if row is None:
                return None
            wanted = sa.select(progress_table).where(progress_table.c.request == request)
            return row, list(connection.execute(wanted.order_by(progress_table.c.subscriber)))


_LABELS: Final = sa.LABEL_STYLE_TABLENAME_PLUS_COL
_FINAL: Final = LOST | {ProgressStatus.COMPLETED}


def _work(row: Any) -> Work:
    return Work(
        request=row.rights_progress_request,
        subscriber=row.rights_progress_subscriber,
        status=ProgressStatus(row.rights_progress_status),
        action=row.rights_progress_action,
        attempts=row.rights_progress_attempts,
        rounds=row.rights_progress_rounds,
        control=row.rights_requests_control,
        request_action=row.rights_requests_action,
        categories=tuple(json.loads(row.rights_requests_categories)),
        publisher=row.rights_requests_publisher,
        at=row.rights_requests_at,
    )
