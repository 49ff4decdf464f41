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
- Who takes a session up, begins or forgets it names what they saw of it. Where that has
  changed since, nothing is done (`TakenError`): of two that come at once the second has to
  look again, and inherits what the first has made of it.
- A session that has ended is gone with all its subscriptions; one that nobody took up
  again in time is swept away. A gateway that runs renews what its clients hold; what a gateway
  held that was killed ends a day later than it would have.
- Sessions of a user that is removed are gone with the user (`Disown`), wherever they were left:
  a later user of the same name takes up none of them.
- A user has so many sessions at most, and so has an address whose clients are anonymous, at all
  gateways of a store together (`SessionQuotas`). Who begins one more is refused
  (`SessionQuotaError`); no session gives way to another. Addresses are hidden.
- A session whose client has left says which client that is, so that erasure can look what waits
  for it at the broker (`away`). It does not where its gateway was killed, nor where the broker
  holds a will back: who takes the session up, even for a moment, would end that will.
- A subscription for a purpose that was decided before a command ended all of them, and that
  comes later, has ended, too (`Keep.era`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.clock import utc_now
from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.purpose_state import persisted_table, read_log
from penstock.store.session_tables import (
    AREA,
    PAUSED,
    SessionCounts,
    SessionQuotas,
    count_sessions,
    digest,
    sessions_table,
    subscriptions_table,
)

NEVER = 0xFFFF_FFFF
"""The session expiry that means: kept until the client says otherwise."""
CONNECTED = timedelta(days=1)
"""How much longer a session is kept while it is held: many times as long as renewing may pause."""
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A subscription as the store keeps it."""

    filter: str
    number: int
    purpose: str | None
    options: int
    identifier: int
    content: str | None = None
    """What events it is for, an expression; None: all."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a client identifier belongs to, and the connection that has its session."""

    principal: str
    holder: str


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store keeps it."""

    principal: str
    holder: str
    last_number: int
    subscriptions: tuple[StoredSubscription, ...]
    persisted: tuple[StoredSubscription, ...] = ()
    """Its subscriptions as the command PERSIST found them."""
    era: int = 0
    """The epoch of the last command on the purpose state, which all of this accounts for."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A session begins anew; what a previous holder kept is forgotten."""

    client: str
    principal: str
    holder: str
    previous: str | None
    expiry: int = NEVER
    address: str = ""
    """Where the client is, if it is anonymous: sessions count for it."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A session has these subscriptions from now on, and those filters no longer.

    The client ended those in `drop`; those in `cleared` a command did, which may bring them back.
    `era` is the epoch of the last command that was known when this was decided.
    """

    client: str
    holder: str
    put: tuple[StoredSubscription, ...]
    drop: tuple[str, ...]
    last_number: int
    cleared: tuple[str, ...] = ()
    era: int = NEVER


@dataclass(frozen=True, slots=True)
class Leave:
    """A connection has ended; its session ends after so many seconds, at once with 0."""

    client: str
    holder: str
    expiry: int
    will_waits: bool = False
    """Whether the broker holds a will back, which whoever takes the session up would end."""


@dataclass(frozen=True, slots=True)
class Return:
    """A session was taken up again by another holder, just as it was seen."""

    client: str
    holder: str
    seen: StoredSession
    expiry: int = NEVER


@dataclass(frozen=True, slots=True)
class Forget:
    """The session of a previous holder was ended by one that is not kept."""

    client: str
    previous: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A session is still held by this connection."""

    client: str
    holder: str
    expiry: int


@dataclass(frozen=True, slots=True)
class Disown:
    """These principals are no more; what they left behind belongs to nobody."""

    principals: tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class AwaySession:
    """A session whose client has left it."""

    client: str
    seconds: int
    """How long it is kept; `NEVER` has no end."""


ClientChange = Begin | Keep | Leave | Return | Forget | Hold
SessionChange = ClientChange | Disown


class TakenError(UnavailableError):
    """A session is not, or no longer, as somebody saw it: another connection has it."""

    def __init__(self) -> None:
        super().__init__("the session was taken over by another connection", fix="connect again")


class Sessions:
    """Reads and changes the sessions in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], datetime] = utc_now,
        quotas: SessionQuotas | None = None,
        hide: Callable[[str], str] = digest,
    ) -> None:
        self._database = database
        self._clock = clock
        self._quotas = quotas or SessionQuotas()
        self._hide = hide

    def load(self, client_id: str) -> StoredSession | None:
        """Return a session, if it is known and has not expired."""
        with self._database.read() as connection:
            return self._read(connection, digest(client_id))

    def owner(self, client_id: str) -> Owner | None:
        """Return whom a client identifier belongs to, if it has a session."""
        with self._database.read() as connection:
            return self._find(connection, digest(client_id))

    def check_quota(self, principal: str, address: str) -> None:
        """Refuse one more session where there are as many as there may be; `Begin` does as well."""
        with self._database.read() as connection:
            self._check_quota(connection, principal, address)

    def count(self) -> SessionCounts:
        """Count the sessions that are kept, by all gateways of the store."""
        with self._database.read() as connection:
            return count_sessions(connection, self._clock())

    def away(self) -> list[AwaySession]:
        """Return the sessions whose clients have left them."""
        table, now = sessions_table.c, self._clock()
        kept = sa.or_(table.expires.is_(None), table.expires > now)
        query = sa.select(table.away, table.expires).where(table.away.is_not(None), kept)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            AwaySession(
                it.away,
                NEVER if it.expires is None else max(1, int((it.expires - now).total_seconds())),
            )
            for it in rows
        ]

    def apply(self, changes: Sequence[SessionChange]) -> None:
        """Make changes durable, all of them or none."""
        with self._database.write(AREA) as connection:
            last_ending = read_log(connection).last_ending
            for change in changes:
                if isinstance(change, Disown):
                    _disown(connection, change.principals)
                else:
                    self._apply(connection, change, last_ending)

    def sweep(self) -> int:
        """Forget the sessions that have expired; return how many."""
        with self._database.write(AREA) as connection:
            gone = connection.execute(
                sa.delete(sessions_table).where(sessions_table.c.expires <= self._clock())
            )
            return int(gone.rowcount)

    def _apply(self, connection: Connection, change: ClientChange, last_ending: int) -> None:
        key = digest(change.client)
        mine = sessions_table.c.client == key
        match change:
            case Begin(principal=principal, holder=holder, previous=previous, address=address):
                self._check_holder(connection, key, previous)
                connection.execute(sa.delete(sessions_table).where(mine))
                self._check_quota(connection, principal, address)
                connection.execute(
                    sa.insert(sessions_table).values(
                        client=key,
                        principal=principal,
                        holder=holder,
                        last_number=0,
                        expires=self._end_of(change.expiry, CONNECTED),
                        address=self._hide(address) if address else "",
                    )
                )
            case Keep(put=put, drop=drop, last_number=last_number):
                self._check_holder(connection, key, change.holder)
                gone = [*drop, *change.cleared, *(it.filter for it in put)]
                self._forget(connection, subscriptions_table, key, gone)
                self._forget(connection, persisted_table, key, drop)
                if change.era < last_ending:
                    put = tuple(ended for it in put for ended in _end(it))
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
                left = {
                    "expires": self._end_of(expiry),
                    "away": None if change.will_waits else change.client,
                }
                connection.execute(sa.update(sessions_table).where(mine, held).values(left))
            case Hold(holder=holder, expiry=expiry):
                held = sessions_table.c.holder == holder
                ends = self._end_of(expiry, CONNECTED)
                connection.execute(sa.update(sessions_table).where(mine, held).values(expires=ends))
            case Forget(previous=previous):
                self._check_holder(connection, key, previous)
                connection.execute(sa.delete(sessions_table).where(mine))
            case Return(holder=holder, seen=seen):
                if self._read(connection, key) != seen:
                    raise TakenError
                ends = self._end_of(change.expiry, CONNECTED)
                taken = {"expires": ends, "holder": holder, "away": None}
                connection.execute(sa.update(sessions_table).where(mine).values(taken))

    def _end_of(self, expiry: int, longer: timedelta = timedelta()) -> datetime | None:
        return None if expiry == NEVER else self._clock() + timedelta(seconds=expiry) + longer

    def _check_quota(self, connection: Connection, principal: str, address: str) -> None:
        hidden = self._hide(address) if address else ""
        self._quotas.check(connection, principal, hidden, self._clock())

    def _find(self, connection: Connection, key: str) -> Owner | None:
        table = sessions_table.c
        query = sa.select(table.principal, table.holder, table.expires).where(table.client == key)
        row = connection.execute(query).first()
        if row is None or (row.expires is not None and row.expires <= self._clock()):
            return None
        return Owner(row.principal, row.holder)

    def _read(self, connection: Connection, key: str) -> StoredSession | None:
        owner = self._find(connection, key)
        if owner is None:
            return None
        last = sa.select(sessions_table.c.last_number).where(sessions_table.c.client == key)
        return StoredSession(
            owner.principal,
            owner.holder,
            connection.scalar(last) or 0,
            _select(connection, subscriptions_table, key),
            _select(connection, persisted_table, key),
            read_log(connection).last,
        )

    def _check_holder(self, connection: Connection, key: str, holder: str | None) -> None:
        owner = self._find(connection, key)
        if (owner.holder if owner is not None else None) != holder:
            raise TakenError

    @staticmethod
    def _forget(connection: Connection, table: sa.Table, key: str, filters: Iterable[str]) -> None:
        for text in filters:
            connection.execute(
                sa.delete(table).where(table.c.client == key, table.c.filter == text)
            )


def _disown(connection: Connection, principals: Sequence[str]) -> None:
    for at in range(0, len(principals), _AT_ONCE):
        gone = sessions_table.c.principal.in_(principals[at : at + _AT_ONCE])
        connection.execute(sa.delete(sessions_table).where(gone))


def _select(connection: Connection, table: sa.Table, key: str) -> tuple[StoredSubscription, ...]:
    query = sa.select(table).where(table.c.client == key).order_by(table.c.number)
    return tuple(
        StoredSubscription(it.filter, it.number, it.purpose, it.options, it.identifier, it.content)
        for it in connection.execute(query)
    )


def _end(held: StoredSubscription) -> tuple[StoredSubscription, ...]:
    """Return what is left of a subscription that a command has ended meanwhile."""
    if held.purpose is None:
        return (held,)
    return () if held.options & PAUSED else (replace(held, number=-held.number),)


def _row(key: str, held: StoredSubscription) -> dict[str, object]:
    return {
        "client": key,
        "number": held.number,
        "filter": held.filter,
        "purpose": held.purpose,
        "options": held.options,
        "identifier": held.identifier,
        "content": held.content,
    }
