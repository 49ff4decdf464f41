"""The journal of event detection: the lease of who detects, the last snapshot, steps since.

    acquire ──▶ load: snapshot, steps ──▶ append, append, … ──▶ keep (a snapshot) ──▶ release

Rules that hold here:
- One process detects at a time: the holder of the lease. A lease lasts for some seconds, and
  each write renews it; who was too slow may no longer write (`LeaseLostError`), so that no
  two processes can ever continue one history.
- A batch is one transaction: the steps, the transitions that they came to, the situations
  that hold then, and the requests that were carried out. All of it is durable, or nothing.
- A snapshot replaces the steps up to its number in one transaction.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, String, Table

from penstock.clock import utc_now
from penstock.errors import PenstockError
from penstock.store.database import Database
from penstock.store.detection.tables import (
    AREA,
    TROUBLE_LENGTH,
    Cause,
    State,
    as_stored,
    requests_table,
    situations_table,
    transitions_table,
)
from penstock.store.schema import Moment, metadata

NAME: Final = "default"
HOLDER_BYTES: Final = 16
PLACE_LENGTH: Final = 256
ADDRESS_LENGTH: Final = 300
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

detectors_table = Table(
    "detectors",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(2 * HOLDER_BYTES), nullable=False),
    Column("place", String(PLACE_LENGTH), nullable=False),
    Column("since", Moment, nullable=False),
    Column("held_until", Moment, nullable=False),
    Column("trouble", String(TROUBLE_LENGTH), nullable=False),
    Column("address", String(ADDRESS_LENGTH), nullable=False),
    Column("told_for", Integer, nullable=False),
)

snapshots_table = Table(
    "detection_snapshots",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("through", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

steps_table = Table(
    "detection_steps",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)


class LeaseLostError(PenstockError):
    """Another process holds the lease now."""


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The holder of the lease, and what keeps it from detecting, if anything."""

    holder: str
    place: str
    since: datetime
    held_until: datetime
    trouble: str
    address: str = ""
    """Where other gateways reach it, as `host:port`; empty where they cannot."""
    told_for: int = 0
    """How long other gateways rely on state that it replicated, in ms; 0 where there is none."""

    def is_alive(self, now: datetime) -> bool:
        """Say whether it still holds the lease."""
        return now < self.held_until


@dataclass(frozen=True, slots=True)
class DetectedTransition:
    """A transition, as detection tells it; `at` is in milliseconds since 1970."""

    at: int
    scenario: str
    subject: str
    source: str | None
    target: str | None
    event: str | None
    cause: Cause = Cause.DETECTED
    request: str | None = None


@dataclass(slots=True)
class JournalBatch:
    """What is written together."""

    number: int
    """Counts the batches; a snapshot names the last that is in it."""
    data: bytes
    transitions: list[DetectedTransition] = field(default_factory=list)
    settled: list[tuple[str, str]] = field(default_factory=list)
    """Requests that were carried out, each with its trouble, if any."""


class DetectionStore:
    """The rows of one process that detects, or would. Its threads may share it."""

    def __init__(
        self,
        database: Database,
        place: str,
        *,
        seconds: float,
        holder: str | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.holder = holder or secrets.token_hex(HOLDER_BYTES)
        self.address = ""
        """Where other gateways reach this one; written with the lease."""
        self._database = database
        self.place = place[:PLACE_LENGTH]
        self._life = timedelta(seconds=seconds)
        self._clock = clock

    def find(self) -> LeaderRecord | None:
        """Return who holds the lease, or held it last; nothing is written."""
        return find_leader(self._database)

    def is_free(self, held: LeaderRecord, seconds: float = 0.0) -> bool:
        """Say whether a lease has expired, and so many seconds ago."""
        return not held.is_alive(self._clock() - timedelta(seconds=seconds))

    def acquire(self, instead_of: str = "") -> LeaderRecord:
        """Acquire the lease if nobody holds it, renew it if it is ours; return who holds it.

        It is also taken from the holder `instead_of`, of whom the caller knows that it is gone.
        """
        now = self._clock()
        mine = LeaderRecord(self.holder, self.place, now, now + self._life, "", self.address)
        with self._database.write(AREA) as connection:
            held = read_leader(connection)
            if held is None:
                connection.execute(sa.insert(detectors_table).values(name=NAME, **_values(mine)))
                return mine
            if held.holder not in {self.holder, instead_of} and held.is_alive(now):
                return held
            since = held.since if held.holder == self.holder else now
            told_for = held.told_for if held.holder == self.holder else 0
            made = replace(mine, since=since, trouble=held.trouble, told_for=told_for)
            connection.execute(_own_row().values(**_values(made)))
            return made

    def release(self) -> None:
        """Release the lease, so that another need not wait until it expires."""
        with self._database.write(AREA) as connection:
            connection.execute(
                _own_row()
                .where(detectors_table.c.holder == self.holder)
                .values(held_until=self._clock())
            )

    def announce(self, seconds: float) -> None:
        """Note that other gateways rely on replicated state for so long."""
        with self._database.write(AREA) as connection:
            self._renew(connection, told_for=math.ceil(seconds * 1000))

    def load(self) -> tuple[bytes | None, int, list[bytes]]:
        """Return the snapshot, the number of the last batch, and the batches since."""
        with self._database.read() as connection:
            snapshot = connection.execute(sa.select(snapshots_table)).one_or_none()
            query = sa.select(steps_table.c.number, steps_table.c.data)
            steps = connection.execute(query.order_by(steps_table.c.number)).all()
        last = steps[-1].number if steps else snapshot.through if snapshot else 0
        return snapshot.data if snapshot else None, last, [row.data for row in steps]

    def append(self, batch: JournalBatch) -> None:
        """Write a batch durably."""
        with self._database.write(AREA) as connection:
            self._renew(connection)
            if batch.data:
                connection.execute(
                    sa.insert(steps_table),
                    {"name": NAME, "number": batch.number, "data": batch.data},
                )
            self._add_transitions(connection, batch.transitions)
            for request, trouble in batch.settled:
                self._settle(connection, request, trouble)

    def keep(
        self,
        data: bytes,
        through: int,
        standing: Iterable[tuple[str, str, str, int]] | None = None,
    ) -> None:
        """Write a snapshot; the steps up to it are no longer needed.

        `standing` are all situations that hold, each with since when: what the tables say
        otherwise is put right. None leaves them: there may be later steps.
        """
        with self._database.write(AREA) as connection:
            self._renew(connection)
            held = connection.scalar(sa.select(snapshots_table.c.through))
            if held is not None and held > through:
                return  # Saved long ago and late: the steps since are in a later one.
            connection.execute(snapshots_table.delete())
            connection.execute(
                sa.insert(snapshots_table).values(name=NAME, through=through, data=data)
            )
            connection.execute(steps_table.delete().where(steps_table.c.number <= through))
            if standing is None:
                return
            rows = {
                (scenario, as_stored(subject)): {
                    "scenario": scenario,
                    "subject": as_stored(subject),
                    "situation": situation,
                    "since": _moment(since),
                }
                for scenario, subject, situation, since in standing
            }
            connection.execute(situations_table.delete())
            if rows:
                connection.execute(sa.insert(situations_table), list(rows.values()))

    # --- inside ---

    def _renew(self, connection: Connection, **values: str | int) -> None:
        """Renew the lease within a transaction; nothing is written where it is lost."""
        renewed = connection.execute(
            _own_row()
            .where(detectors_table.c.holder == self.holder)
            .values(held_until=self._clock() + self._life, **values)
        )
        if renewed.rowcount != 1:
            raise LeaseLostError(
                "another gateway has taken over the detection of events",
                fix="nothing to do: this one follows when the other ends",
            )

    def _add_transitions(self, connection: Connection, steps: Sequence[DetectedTransition]) -> None:
        if not steps:
            return
        table = transitions_table
        last = connection.scalar(sa.select(sa.func.max(table.c.number))) or 0
        rows = [
            {
                "number": last + place,
                "at": _moment(it.at),
                "scenario": it.scenario,
                "subject": as_stored(it.subject),
                "source": it.source,
                "target": it.target,
                "event": it.event,
                "cause": it.cause,
                "request": it.request,
            }
            for place, it in enumerate(steps, 1)
        ]
        connection.execute(sa.insert(table), rows)
        held = situations_table
        # Of several steps of one subject the last one counts.
        for row in {(row["scenario"], row["subject"]): row for row in rows}.values():
            connection.execute(
                held.delete().where(
                    held.c.scenario == row["scenario"], held.c.subject == row["subject"]
                )
            )
            if row["target"] is not None:
                connection.execute(
                    sa.insert(held).values(
                        scenario=row["scenario"],
                        subject=row["subject"],
                        situation=row["target"],
                        since=row["at"],
                    )
                )

    def _settle(self, connection: Connection, request: str, trouble: str) -> None:
        table = requests_table
        connection.execute(
            table.update()
            .where(table.c.request == request, table.c.state == State.READY)
            .values(
                state=State.FAILED if trouble else State.DONE,
                settled=self._clock(),
                trouble=trouble[:TROUBLE_LENGTH],
            )
        )


def find_leader(database: Database) -> LeaderRecord | None:
    """Return who detects, or did last, as far as a database knows."""
    with database.read() as connection:
        return read_leader(connection)


def read_leader(connection: Connection) -> LeaderRecord | None:
    """Return who detects, or did last."""
    table = detectors_table
    query = sa.select(*(table.c[name] for name in LeaderRecord.__slots__)).where(
        table.c.name == NAME
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else LeaderRecord(*row)


def _own_row() -> sa.Update:
    return detectors_table.update().where(detectors_table.c.name == NAME)


def _values(leader: LeaderRecord) -> dict[str, object]:
    return {name: getattr(leader, name) for name in LeaderRecord.__slots__}


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
