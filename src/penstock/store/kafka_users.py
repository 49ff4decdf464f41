"""Users that Penstock keeps at a Kafka cluster, and how far the cluster has followed.

The definitions say who may do what; here stands what a definition must not hold, and what
the cluster has been told:

    kafka_users      one row for each user that Penstock put, or is about to put, at the
                     cluster; it goes when the cluster has lost the user
    kafka_progress   one row: the epoch that the cluster has, who works on it, what failed

Rules that hold here:
- A row stands before anything is done for its user at the cluster, and until everything
  is undone there. A crash in between leaves a row that tells what to look at.
- A password is never here: what is kept is sealed by the caller, under a key that is not
  in the database.
- `version` counts the passwords a user was given, `applied` is the one the cluster has.
- One process works on a cluster at a time: it holds the progress until a moment that it
  moves on while it lives. Once another has taken over, it writes nothing more.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, String, Table

from penstock.clock import utc_now
from penstock.errors import UnavailableError
from penstock.store.database import Database, lock_area
from penstock.store.schema import MARK_LENGTH, NAME_LENGTH, Moment, metadata

AREA = "kafka"
TROUBLE_LENGTH = 500
HOLD_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_ROWS = 500
_ONLY = 1

users_table = Table(
    "kafka_users",
    metadata,
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("mechanism", String(32)),
    Column("iterations", Integer),
    Column("salt", LargeBinary),
    Column("sealed", LargeBinary),
    Column("version", BigInteger, nullable=False),
    Column("applied", BigInteger, nullable=False),
)

progress_table = Table(
    "kafka_progress",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("cluster", String(128), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("mark", String(MARK_LENGTH), nullable=False),
    Column("holder", String(32), nullable=False),
    Column("held_until", Moment),
    Column("attempts", Integer, nullable=False),
    Column("since", Moment),
    Column("trouble", String(TROUBLE_LENGTH), nullable=False),
)


@dataclass(frozen=True, slots=True)
class SealedCredential:
    """What a user proves a password with: salted, iterated and sealed."""

    mechanism: str
    iterations: int
    salt: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class KafkaUser:
    """A user at the cluster: how many passwords it was given, and which the cluster has."""

    name: str
    version: int
    applied: int
    credential: SealedCredential | None

    @property
    def is_pending(self) -> bool:
        """Say whether the cluster lacks the user's newest password."""
        return self.applied != self.version


@dataclass(frozen=True, slots=True)
class Progress:
    """The epoch that a cluster has, and what stands in the way of the next."""

    cluster: str = ""
    epoch: int = -1
    mark: str = ""
    attempts: int = 0
    since: datetime | None = None
    trouble: str = ""


class KafkaUsers:
    """The rows of a database. Threads may share it."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def users(self) -> dict[str, KafkaUser]:
        """Return all users, in the order of their names."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(users_table).order_by(users_table.c.name)).all()
        return {row.name: _user(row) for row in rows}

    def some_users(self, names: Iterable[str]) -> dict[str, KafkaUser]:
        """Return those of these users that there are."""
        found: dict[str, KafkaUser] = {}
        asked = sorted(names)
        with self._database.read() as connection:
            for first in range(0, len(asked), _ROWS):
                some = users_table.c.name.in_(asked[first : first + _ROWS])
                for row in connection.execute(sa.select(users_table).where(some)):
                    found[row.name] = _user(row)
        return found

    def user(self, name: str) -> KafkaUser | None:
        """Return one user."""
        return self.some_users([name]).get(name)

    def names(self) -> set[str]:
        """Return the names of all users."""
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(users_table.c.name)))

    def pending(self) -> set[str]:
        """Return the names of users whose newest password the cluster lacks."""
        lacking = users_table.c.version != users_table.c.applied
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(users_table.c.name).where(lacking)))

    def put_within(self, connection: Connection, name: str, credential: SealedCredential) -> None:
        """Give a user a password, within a transaction; the cluster does not have it yet."""
        lock_area(connection, AREA)
        values = {
            "mechanism": credential.mechanism,
            "iterations": credential.iterations,
            "salt": credential.salt,
            "sealed": credential.sealed,
        }
        done = connection.execute(
            users_table.update()
            .where(users_table.c.name == name)
            .values(version=users_table.c.version + 1, **values)
        )
        if not done.rowcount:
            connection.execute(
                users_table.insert().values(name=name, version=1, applied=0, **values)
            )

    def put(self, name: str, credential: SealedCredential) -> None:
        """Give a user a password; the cluster does not have it yet."""
        with self._database.write(AREA) as connection:
            self.put_within(connection, name, credential)

    def register(self, names: Iterable[str]) -> None:
        """Make rows for users that have none, before anything is done for them."""
        with self._database.write(AREA) as connection:
            held = set(connection.scalars(sa.select(users_table.c.name)))
            rows = [
                {"name": name, "version": 0, "applied": 0} for name in names if name not in held
            ]
            if rows:
                connection.execute(users_table.insert(), rows)

    def mark_applied(self, versions: Iterable[tuple[str, int]]) -> None:
        """Note that the cluster has these passwords; a newer one stays to be done."""
        rows = [{"of": name, "to": version} for name, version in versions]
        if not rows:
            return
        with self._database.write(AREA) as connection:
            connection.execute(
                users_table.update()
                .where(users_table.c.name == sa.bindparam("of"))
                .values(applied=sa.bindparam("to")),
                rows,
            )

    def forget(self, versions: Iterable[tuple[str, int]]) -> None:
        """Remove the rows of users that the cluster has lost, unless they came again since."""
        rows = [{"of": name, "at": version} for name, version in versions]
        if not rows:
            return
        with self._database.write(AREA) as connection:
            connection.execute(
                users_table.delete().where(
                    users_table.c.name == sa.bindparam("of"),
                    users_table.c.version == sa.bindparam("at"),
                ),
                rows,
            )

    def progress(self) -> Progress:
        """Return how far the cluster has followed."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(progress_table)).one_or_none()
        if row is None:
            return Progress()
        return Progress(row.cluster, row.epoch, row.mark, row.attempts, row.since, row.trouble)

    @contextmanager
    def working(self) -> Iterator[Holding]:
        """Be the one who works on the cluster; refuse where somebody else does."""
        holder = uuid.uuid4().hex
        until = self._clock() + timedelta(seconds=HOLD_SECONDS)
        with self._database.write(AREA) as connection:
            row = connection.execute(sa.select(progress_table)).one_or_none()
            if row is None:
                connection.execute(
                    progress_table.insert().values(
                        id=_ONLY, cluster="", epoch=-1, mark="", attempts=0, trouble="",
                        holder=holder, held_until=until,
                    )
                )  # fmt: skip
            elif row.holder and row.held_until is not None and row.held_until > self._clock():
                raise BusyError(
                    "another process is bringing Kafka up to date",
                    fix="wait until it is done, and try again",
                )
            else:
                connection.execute(progress_table.update().values(holder=holder, held_until=until))
        holding = Holding(self._database, holder, self._clock)
        done = threading.Event()
        beat = threading.Thread(
            target=_keep, args=(holding, done), name="penstock-kafka-holding", daemon=True
        )
        beat.start()
        try:
            yield holding
        finally:
            done.set()
            beat.join()
            holding.write(holder="", held_until=None)


class BusyError(UnavailableError):
    """Somebody else works on the cluster."""


class Holding:
    """The right to work on the cluster, for a while."""

    def __init__(self, database: Database, holder: str, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._holder = holder
        self._clock = clock

    def renew(self) -> None:
        """Go on for another while; raise where somebody else has taken over."""
        until = self._clock() + timedelta(seconds=HOLD_SECONDS)
        self._insist(held_until=until)

    def complete(self, cluster: str, epoch: int, mark: str) -> None:
        """Note that the cluster has this epoch; raise where somebody else has taken over."""
        self._insist(cluster=cluster, epoch=epoch, mark=mark, attempts=0, since=None, trouble="")

    def fail(self, trouble: str) -> None:
        """Note what stands in the way; the first failure since the last success dates it."""
        self.write(
            attempts=progress_table.c.attempts + 1,
            since=sa.func.coalesce(
                progress_table.c.since, sa.literal(self._clock(), type_=Moment())
            ),
            trouble=trouble[:TROUBLE_LENGTH],
        )

    def _insist(self, **values: object) -> None:
        if not self.write(**values):
            raise BusyError(
                "another process took over to bring Kafka up to date",
                fix="see `penstock rbac diff` for what is left to do",
            )

    def write(self, **values: object) -> bool:
        """Write to the progress, if it is still ours."""
        mine = progress_table.update().where(progress_table.c.holder == self._holder)
        with self._database.write(AREA) as connection:
            return bool(connection.execute(mine.values(**values)).rowcount)


def _keep(holding: Holding, done: threading.Event) -> None:
    """Hold on while the work goes on; who lost the right learns it before the next step."""
    while not done.wait(_RENEW_SECONDS):
        with contextlib.suppress(UnavailableError):
            holding.renew()


def _user(row: sa.Row[Any]) -> KafkaUser:
    credential = None
    if row.sealed is not None:
        credential = SealedCredential(row.mechanism, row.iterations, row.salt, row.sealed)
    return KafkaUser(row.name, row.version, row.applied, credential)
