"""Sessions of MQTT clients that outlive their connections: who owns them, and what for.

The broker keeps the sessions themselves. Kept here is what only the gateways know: the
principal that a client identifier belongs to, and the access purpose of each subscription
under the number that the broker gives back with every message.

Rules that hold here:
- What a subscription stands for is durable before the broker is asked for it, so that no
  message can come under a number that nobody knows, on whichever gateway it comes.
- `apply` takes many changes of many sessions as one transaction, in their order.
- A session has one holder at a time, the connection that took it up last. What an earlier
  one still has to say comes too late and is not taken.
- A session that has ended is gone with all its subscriptions; one that nobody took up
  again in time is swept away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, ForeignKey, Integer, String, Table, Text

from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.definitions import utc_now
from penstock.store.schema import Moment, metadata

AREA = "sessions"
NEVER = 0xFFFF_FFFF
"""The session expiry that means: kept until the client says otherwise."""

# A client identifier has up to 65,535 bytes, more than an index takes: rows go by its digest.
DIGEST_LENGTH = 64
PRINCIPAL_LENGTH = 256
HOLDER_LENGTH = 32
PURPOSE_LENGTH = 256

sessions_table = Table(
    "sessions",
    metadata,
    Column("client", String(DIGEST_LENGTH), primary_key=True),
    Column("principal", String(PRINCIPAL_LENGTH), nullable=False),
    Column("holder", String(HOLDER_LENGTH), nullable=False),
    Column("last_number", BigInteger, nullable=False),
    Column("expires", Moment, index=True),
)

subscriptions_table = Table(
    "session_subscriptions",
    metadata,
    Column(
        "client",
        String(DIGEST_LENGTH),
        ForeignKey(sessions_table.c.client, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("filter", Text, nullable=False),
    Column("purpose", String(PURPOSE_LENGTH)),
    Column("options", Integer, nullable=False),
    Column("identifier", BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A subscription as the store keeps it."""

    filter: str
    number: int
    purpose: str | None
    options: int
    identifier: int


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store keeps it."""

    principal: str
    last_number: int
    subscriptions: tuple[StoredSubscription, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A session begins anew; what was kept under this client is forgotten."""

    client: str
    principal: str
    holder: str


@dataclass(frozen=True, slots=True)
class Keep:
    """A session has these subscriptions from now on, and those filters no longer."""

    client: str
    holder: str
    put: tuple[StoredSubscription, ...]
    drop: tuple[str, ...]
    last_number: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A connection has ended; its session ends after so many seconds, at once with 0."""

    client: str
    holder: str
    expiry: int


@dataclass(frozen=True, slots=True)
class Return:
    """A session was taken up again, by another holder."""

    client: str
    holder: str


@dataclass(frozen=True, slots=True)
class Forget:
    """A session was ended by one that is not kept."""

    client: str


SessionChange = Begin | Keep | Leave | Return | Forget


def digest(client_id: str) -> str:
    """Return the key of a client identifier."""
    return hashlib.sha256(client_id.encode()).hexdigest()


class Sessions:
    """Reads and changes the sessions in a database. Threads may share it."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def load(self, client_id: str) -> StoredSession | None:
        """Return a session, if it is known and has not expired."""
        key = digest(client_id)
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(sessions_table).where(sessions_table.c.client == key)
            ).first()
            if row is None or (row.expires is not None and row.expires <= self._clock()):
                return None
            held = connection.execute(
                sa.select(subscriptions_table).where(subscriptions_table.c.client == key)
            ).all()
        return StoredSession(
            row.principal,
            row.last_number,
            tuple(
                StoredSubscription(it.filter, it.number, it.purpose, it.options, it.identifier)
                for it in held
            ),
        )

    def owner(self, client_id: str) -> str | None:
        """Return the principal that a client identifier belongs to, if it has a session."""
        query = sa.select(sessions_table.c.principal, sessions_table.c.expires).where(
            sessions_table.c.client == digest(client_id)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None or (row.expires is not None and row.expires <= self._clock()):
            return None
        principal: str = row.principal
        return principal

    def apply(self, changes: Sequence[SessionChange]) -> None:
        """Make changes durable, all of them or none."""
        with self._database.write(AREA) as connection:
            for change in changes:
                self._apply(connection, change)

    def sweep(self) -> int:
        """Forget the sessions that have expired; return how many."""
        with self._database.write(AREA) as connection:
            gone = connection.execute(
                sa.delete(sessions_table).where(sessions_table.c.expires <= self._clock())
            )
            return int(gone.rowcount)

    def _apply(self, connection: Connection, change: SessionChange) -> None:
        key = digest(change.client)
        mine = sessions_table.c.client == key
        match change:
            case Begin(principal=principal, holder=holder):
                connection.execute(sa.delete(sessions_table).where(mine))
                connection.execute(
                    sa.insert(sessions_table).values(
                        client=key, principal=principal, holder=holder, last_number=0, expires=None
                    )
                )
            case Keep(put=put, drop=drop, last_number=last_number):
                self._check_holder(connection, key, change.holder)
                self._forget(connection, key, [*drop, *(it.filter for it in put)])
                if put:
                    connection.execute(
                        sa.insert(subscriptions_table), [_row(key, it) for it in put]
                    )
                connection.execute(
                    sa.update(sessions_table).where(mine).values(last_number=last_number)
                )
            case Leave(expiry=0, holder=holder):
                held = sessions_table.c.holder == holder
                connection.execute(sa.delete(sessions_table).where(mine, held))
            case Leave(expiry=expiry, holder=holder):
                held = sessions_table.c.holder == holder
                ends = None if expiry == NEVER else self._clock() + timedelta(seconds=expiry)
                connection.execute(sa.update(sessions_table).where(mine, held).values(expires=ends))
            case Forget():
                connection.execute(sa.delete(sessions_table).where(mine))
            case Return(holder=holder):
                taken = sa.update(sessions_table).where(mine).values(expires=None, holder=holder)
                connection.execute(taken)

    @staticmethod
    def _check_holder(connection: Connection, key: str, holder: str) -> None:
        query = sa.select(sessions_table.c.holder).where(sessions_table.c.client == key)
        if connection.scalar(query) != holder:
            raise UnavailableError(
                "the session was taken over by another connection", fix="connect again"
            )

    @staticmethod
    def _forget(connection: Connection, key: str, filters: Iterable[str]) -> None:
        for text in filters:
            connection.execute(
                sa.delete(subscriptions_table).where(
                    subscriptions_table.c.client == key, subscriptions_table.c.filter == text
                )
            )


def _row(key: str, held: StoredSubscription) -> dict[str, object]:
    return {
        "client": key,
        "number": held.number,
        "filter": held.filter,
        "purpose": held.purpose,
        "options": held.options,
        "identifier": held.identifier,
    }
