"""Compliance in numbers: what is overdue, found and moved on in batches, and what was in time.

    overdue ─┬─ retries left ──▶ to be sent again, with a new deadline
             └─ none left ─────▶ FAILED, the request SOMEFAILED, an alert in the outbox

Rules that hold here:
- A batch is one transaction, and short: other writers come in between.
- Looking costs what is overdue, not what is open: an index leads there.
- In time means before the first deadline, whatever deadlines came later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.clock import utc_now
from penstock.store.database import Database
from penstock.store.rights.outbox import NewNotice, NoticeKind, Outbox
from penstock.store.rights.tables import (
    LOST,
    OPEN,
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    advance,
    progress_table,
    requests_table,
)

AREA: Final = "rights"
SEND: Final = "send"
CHECK: Final = "check"
BATCH: Final = 1_000
_ROWS: Final = progress_table.c
_KEY: Final = sa.and_(
    _ROWS.request == sa.bindparam("of"), _ROWS.subscriber == sa.bindparam("service")
)
_AGAIN: Final = progress_table.update().where(_KEY).values(
    action=SEND, next_at=sa.bindparam("now"), attempts=0, rounds=_ROWS.rounds + 1,
    trouble="overdue", updated=sa.bindparam("now"),
)  # fmt: skip
_FAILED: Final = progress_table.update().where(_KEY).values(
    status=sa.bindparam("after"), next_at=None, trouble="overdue", updated=sa.bindparam("now"),
)  # fmt: skip
_SOME_FAILED: Final = (
    requests_table.update()
    .where(requests_table.c.id == sa.bindparam("of"))
    .values(status=RequestStatus.SOMEFAILED.value)
)


class OverdueRule(NamedTuple):
    """What becomes of a service that is overdue."""

    retries: int
    alert: tuple[str, ...]
    """The channels by which its contact is told in the end."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found."""

    again: int = 0
    failed: tuple[str, ...] = ()
    """The services that failed, one for each request."""

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.again + other.again, self.failed + other.failed)


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """How one service honoured one control."""

    control: str
    subscriber: str
    total: int
    in_time: int
    late: int
    open: int
    overdue: int
    """Open still, past the first deadline."""
    failed: int

    @property
    def share(self) -> float | None:
        """The part honoured in time, of what had to be by now; None where nothing had to."""
        had_to = self.in_time + self.late + self.overdue + self.failed
        return self.in_time / had_to if had_to else None


class ComplianceBook:
    """The progress of all services in a database."""

    def __init__(
        self, database: Database, outbox: Outbox, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._clock = clock

    def sweep(self, rule: Callable[[str], OverdueRule], *, batch: int = BATCH) -> Swept:
        """Move on all that is overdue."""
        swept = Swept()
        while True:
            part, more = self._sweep_batch(rule, batch)
            swept += part
            if not more:
                return swept

    def _sweep_batch(self, rule: Callable[[str], OverdueRule], batch: int) -> tuple[Swept, bool]:
        now = self._clock()
        wanted = (
            sa.select(_ROWS.request, _ROWS.subscriber, _ROWS.status, _ROWS.rounds)
            .where(_ROWS.action == CHECK, _ROWS.next_at <= now)
            .order_by(_ROWS.next_at)
            .limit(batch)
        )
        with self._database.read() as connection:
            if connection.execute(wanted.limit(1)).first() is None:
                return Swept(), False  # nobody is kept waiting by a look
        with self._database.write(AREA) as connection:
            found = connection.execute(wanted.with_for_update()).all()
            rules = {name: rule(name) for name in {row.subscriber for row in found}}
            again = [row for row in found if row.rounds < rules[row.subscriber].retries]
            lost = [row for row in found if row.rounds >= rules[row.subscriber].retries]
            if again:
                keys = [{"of": it.request, "service": it.subscriber, "now": now} for it in again]
                connection.execute(_AGAIN, keys)
            self._fail(connection, lost, rules, now)
        return Swept(len(again), tuple(row.subscriber for row in lost)), len(found) == batch

    def _fail(
        self,
        connection: Connection,
        rows: Sequence[Any],
        rules: dict[str, OverdueRule],
        now: datetime,
    ) -> None:
        if not rows:
            return
        values = [
            {
                "of": row.request, "service": row.subscriber, "now": now,
                "after": advance(ProgressStatus(row.status), ProgressEvent.EXPIRED).value,
            }
            for row in rows
        ]  # fmt: skip
        connection.execute(_FAILED, values)
        connection.execute(_SOME_FAILED, [{"of": it} for it in {row.request for row in rows}])
        self._outbox.add_within(
            connection,
            [
                NewNotice(NoticeKind.ALERT, channel, row.request, row.subscriber)
                for row in rows
                for channel in rules[row.subscriber].alert
            ],
        )

    def figures(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[ServiceFigures]:
        """Return how each service honoured each control, of requests of a time."""
        now = self._clock()
        completed = _ROWS.status == ProgressStatus.COMPLETED.value
        lost = _ROWS.status.in_([it.value for it in LOST])
        late = sa.and_(completed, _ROWS.completed > _ROWS.due)
        still = sa.and_(sa.not_(completed), sa.not_(lost))

        def count(condition: Any) -> Any:
            return sa.func.count(sa.case((condition, 1)))

        wanted = (
            sa.select(
                requests_table.c.control,
                _ROWS.subscriber,
                sa.func.count().label("total"),
                count(completed).label("completed"),
                count(late).label("late"),
                count(still).label("open"),
                count(sa.and_(still, _ROWS.due < now)).label("overdue"),
                count(lost).label("failed"),
            )
            .join(requests_table, _ROWS.request == requests_table.c.id)
            .group_by(requests_table.c.control, _ROWS.subscriber)
            .order_by(requests_table.c.control, _ROWS.subscriber)
        )
        if since is not None:
            wanted = wanted.where(requests_table.c.at >= since)
        if until is not None:
            wanted = wanted.where(requests_table.c.at < until)
        with self._database.read() as connection:
            return [
                ServiceFigures(
                    row.control, row.subscriber, row.total, row.completed - row.late, row.late,
                    row.open, row.overdue, row.failed,
                )
                for row in connection.execute(wanted)
            ]  # fmt: skip

    def totals(self) -> tuple[int, int]:
        """Return how many services still have to do their part, and how many failed it."""
        lost = [it.value for it in LOST]
        still = [it.value for it in OPEN]
        with self._database.read() as connection:
            found = connection.execute(
                sa.select(_ROWS.status, sa.func.count())
                .where(_ROWS.status.in_([*lost, *still]))
                .group_by(_ROWS.status)
            )
            counts: dict[str, int] = {row[0]: row[1] for row in found}
        return sum(counts.get(it, 0) for it in still), sum(counts.get(it, 0) for it in lost)
