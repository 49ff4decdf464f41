"""Privacy requests in a database: accepted in one transaction, worked on under leases.

    submit ──▶ request + progress rows + profile + consent, one transaction ──▶ accepted
    lease  ──▶ due rows, for a while ──▶ worker ──▶ note: what happened, and what comes next

Rules that hold here:
- What was accepted is durable together with everything that follows from it. The prohibition of a
  purpose holds when `submit` has returned.
- A lease is for a while. What its holder notes afterwards still counts if it says what the
  service did; it schedules nothing once another holds the row.
- A lease takes no more than a share for one service: who is slow holds up no other.
- No name is in the tables: a person is found by a mark; who it is stands sealed, and only until
  the request is finished.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.clock import utc_now
from penstock.errors import UsageError
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.rights.acceptance import Acceptance, Accepted, KeyReusedError, NewRequest
from penstock.store.rights.compliance import AREA, CHECK, SEND, ComplianceBook
from penstock.store.rights.outbox import NewNotice, NoticeKind, Outbox
from penstock.store.rights.profiles import Profiles
from penstock.store.rights.tables import (
    LOST,
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    Sealer,
    advance,
    progress_table,
    requests_table,
    sum_up,
)

__all__ = [
    "AREA",
    "CHECK",
    "SEND",
    "Accepted",
    "KeyReusedError",
    "NewRequest",
    "RequestBook",
    "Work",
]
LOOK_AHEAD: Final = 8
"""How many due rows are looked at for each that is taken, to find those of other services."""


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
        self.outbox = Outbox(database, sealer, clock=clock)
        self.compliance = ComplianceBook(database, self.outbox, clock=clock)
        self._acceptance = Acceptance(consent, self.outbox, sealer, clock=clock)
        self._consent = consent
        self.sealer = sealer
        self._database = database
        self._clock = clock

    # --- in ---

    def submit(
        self,
        wanted: Sequence[NewRequest],
        epoch: int,
        *,
        then: Callable[[Connection, list[Accepted]], None] | None = None,
    ) -> list[Accepted]:
        """Accept requests, all or none of them; they hold when this returns."""
        made: list[Accepted] = []
        with self._database.write(AREA) as connection:
            for answer in self._acceptance.accept(connection, wanted, [epoch] * len(wanted)):
                if isinstance(answer, UsageError):
                    raise answer
                made.append(answer)
            if then is not None:
                then(connection, made)
        self.await_enforcement(wanted)
        return made

    def submit_each(
        self,
        wanted: Sequence[tuple[NewRequest, int]],
        *,
        then: Callable[[Connection, list[Accepted | UsageError]], None],
    ) -> list[Accepted | UsageError]:
        """Accept requests, each under its epoch, in one commit; return what became of each.

        Who answers a publisher calls `await_enforcement` first.
        """
        with self._database.write(AREA) as connection:
            made = self._acceptance.accept(
                connection, [it for it, _ in wanted], [it for _, it in wanted]
            )
            then(connection, made)
        return made

    def await_enforcement(self, accepted: Sequence[NewRequest]) -> None:
        """Return when gateways keep to what these requests prohibit, repeated ones included."""
        if any(it.action == Choice.OPT_OUT for it in accepted):
            self._consent.await_enforcement()

    # --- work ---

    def lease(
        self,
        holder: str,
        limit: int,
        seconds: float,
        *,
        share: int | None = None,
        without: Sequence[str] = (),
    ) -> list[Work]:
        """Take rows that are to be sent, oldest first; nobody else gets them for so long.

        No more than `share` are of one service, and none of those in `without`.
        """
        now, rows = self._clock(), progress_table.c
        free = sa.or_(rows.leased_until.is_(None), rows.leased_until < now)
        due = (
            sa.select(rows.request, rows.subscriber)
            .where(rows.action == SEND, rows.next_at <= now, free)
            .order_by(rows.next_at)
        )
        if without:
            due = due.where(rows.subscriber.not_in(without))
        with self._database.read() as connection:
            if connection.execute(due.limit(1)).first() is None:
                return []  # nobody is kept waiting by a look where nothing is due
        with self._database.write(AREA) as connection:
            seen = due.limit(limit * LOOK_AHEAD).with_for_update(skip_locked=True)
            found = _share_out(connection.execute(seen).all(), limit, share)
            if not found:
                return []
            keys = sa.tuple_(rows.request, rows.subscriber).in_(found)
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

    def renew(self, request: str, subscriber: str, holder: str, seconds: float) -> bool:
        """Keep a leased row for longer; say whether it is still the holder's."""
        rows = progress_table.c
        own = sa.and_(rows.request == request, rows.subscriber == subscriber, rows.holder == holder)
        until = self._clock() + timedelta(seconds=seconds)
        with self._database.write(AREA) as connection:
            changed = progress_table.update().where(own).values(leased_until=until)
            return connection.execute(changed).rowcount == 1

    def note(
        self,
        request: str,
        subscriber: str,
        event: ProgressEvent | None,
        *,
        holder: str | None = None,
        alert: Sequence[str] = (),
        then: Callable[[Connection], None] | None = None,
        **plan: Any,
    ) -> ProgressStatus | None:
        """Note what happened, and what comes next; None where there is no such row.

        With `holder`, nothing but the event is noted once another holds the row. What a service
        says by itself plans nothing, and leaves the lease to the worker that is telling it.
        `alert` names the channels by which its contact is told if this lets it fail. `then` may
        write further rows with a change of status; what is said twice changes it once.
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
            if after is not before and after is ProgressStatus.COMPLETED:
                values["completed"] = now
            connection.execute(progress_table.update().where(key).values(values))
            if after is not before:
                self._sum_up(connection, request, now)
                if after in LOST:
                    notices = [NewNotice(NoticeKind.ALERT, it, request, subscriber) for it in alert]
                    self.outbox.add_within(connection, notices)
                if then is not None:
                    then(connection)
        return after

    def _sum_up(self, connection: Connection, request: str, now: datetime) -> None:
        rows, own = progress_table.c, requests_table.c
        found = connection.scalars(sa.select(rows.status).where(rows.request == request))
        status = sum_up(map(ProgressStatus, found))
        values: dict[str, Any] = {"status": status.value, "finished": None}
        if status is RequestStatus.COMPLETED:
            # Nobody needs to be told any more who it was about.
            values |= {"finished": now, "sealed": None}
            wanted = sa.select(requests_table).where(own.id == request)
            row = connection.execute(wanted).mappings().one()
            self.outbox.notify_within(connection, dict(row))
        connection.execute(requests_table.update().where(own.id == request).values(values))

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
        return None if sealed is None else self.sealer.open(sealed, request)

    def newest(
        self,
        *,
        status: RequestStatus | None = None,
        limit: int = 100,
        publisher: str | None = None,
        after: str | None = None,
        subject: str | None = None,
    ) -> Sequence[tuple[Any, int, int]]:
        """Return requests, newest first, with their number of services and how many are done.

        `after` names the last one that was seen of the same list; `subject` whom they are about.
        """
        rows, own = progress_table.c, requests_table.c
        order = (own.at.desc(), own.id)
        wanted = sa.select(own.id).order_by(*order).limit(limit)
        if status is not None:
            wanted = wanted.where(own.status == status.value)
        if publisher is not None:
            wanted = wanted.where(own.publisher == publisher)
        if subject is not None:
            wanted = wanted.where(own.subject == self._consent.marks.of(subject))
        if after is not None:
            seen = requests_table.alias("seen")
            at = sa.select(seen.c.at).where(seen.c.id == after, seen.c.publisher == own.publisher)
            last = at.correlate(requests_table).scalar_subquery()
            # The first of them says nothing new, and is what an index can begin at.
            wanted = wanted.where(
                own.at <= last, sa.or_(own.at < last, sa.and_(own.at == last, own.id > after))
            )
        # The page first, then who works on it: a caller pays for what it gets to see.
        page, services = wanted.subquery("page"), sa.func.count(rows.request)
        done = sa.func.count(sa.case((rows.status == ProgressStatus.COMPLETED.value, 1)))
        counted = (
            sa.select(requests_table, services, done)
            .join(page, page.c.id == own.id)
            .outerjoin(progress_table, rows.request == own.id)
            .group_by(*requests_table.columns)
            .order_by(*order)
        )
        with self._database.read() as connection:
            return [(row, row[-2], row[-1]) for row in connection.execute(counted)]

    def find_by_key(self, publisher: str, key: str) -> str | None:
        """Return the request that a publisher named by a key."""
        own = requests_table.c
        wanted = sa.select(own.id).where(own.publisher == publisher, own.idempotency_key == key)
        with self._database.read() as connection:
            return connection.scalar(wanted)

    def is_about(self, request: str, subject: str) -> bool:
        """Say whether a request is about a person."""
        own = requests_table.c
        wanted = sa.select(own.id).where(
            own.id == request, own.subject == self._consent.marks.of(subject)
        )
        with self._database.read() as connection:
            return connection.scalar(wanted) is not None

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

    def parts(
        self, statuses: Iterable[ProgressStatus], limit: int, *, subscriber: str | None = None
    ) -> Sequence[Any]:
        """Return what services failed, or have to do still, with its request: what is due first."""
        rows, own = progress_table.c, requests_table.c
        wanted = (
            sa.select(
                rows.request, rows.subscriber, rows.status, rows.due, rows.deadline, rows.trouble,
                rows.rounds, rows.attempts, own.control, own.action, own.publisher, own.at,
            )
            .join(requests_table, rows.request == own.id)
            .where(rows.status.in_([it.value for it in statuses]))
            .order_by(rows.due, rows.request, rows.subscriber)
            .limit(limit)
        )  # fmt: skip
        if subscriber is not None:
            wanted = wanted.where(rows.subscriber == subscriber)
        with self._database.read() as connection:
            return connection.execute(wanted).all()

    def show(self, request: str) -> tuple[Any, list[Any]] | None:
        """Return a request and its progress; the work is the same where there is none."""
        wanted = sa.select(progress_table).where(progress_table.c.request == request)
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(requests_table).where(requests_table.c.id == request)
            ).one_or_none()
            progress = connection.execute(wanted.order_by(progress_table.c.subscriber)).all()
        return None if row is None else (row, list(progress))


_LABELS: Final = sa.LABEL_STYLE_TABLENAME_PLUS_COL
_FINAL: Final = LOST | {ProgressStatus.COMPLETED}


def _share_out(found: Sequence[Any], limit: int, share: int | None) -> list[tuple[str, str]]:
    """Choose the first rows, no more than a share of them for one service."""
    taken: Counter[str] = Counter()
    chosen = []
    for row in found:
        if share is None or taken[row.subscriber] < share:
            taken[row.subscriber] += 1
            chosen.append((row.request, row.subscriber))
    return chosen[:limit]


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
