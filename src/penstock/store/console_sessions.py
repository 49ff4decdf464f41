"""Who is signed in at the console, and the one-time links that lead to the first account.

    first start ──▶ link (once, an hour) ──▶ an account that administers
    password, identity provider ──▶ session ──▶ idle | over | signed out | ended for all

Rules that hold here:
- The database holds SHA-256 of what a browser shows: 256 random bits need no slow hash.
- A session ends by itself: after so long without a call, and after so long in all.
- It stands on a proof: where the password changes or is removed, it is over. Who compares says so.
- A user has so many sessions at most; the one that was used least recently ends for a new one.
- A link is good for one use and one hour. Making one ends all before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Index, String, Table

from penstock.clock import utc_now
from penstock.store.database import Database
from penstock.store.schema import NAME_LENGTH, Moment, metadata

AREA: Final = "console"
MOST_PER_USER: Final = 20
LINK_LIFE: Final = timedelta(hours=1)
_TOUCH: Final = timedelta(seconds=30)
"""A call is noted so often at most: reading a page writes nothing as a rule."""

sessions_table = Table(
    "console_sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("proof", String(64), nullable=False),
    Column("made", Moment, nullable=False),
    Column("seen", Moment, nullable=False),
    Column("expires", Moment, nullable=False),
    Index("ix_console_sessions_user", "user"),
)

links_table = Table(
    "console_links",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("expires", Moment, nullable=False),
)


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One browser that somebody is signed in at."""

    digest: str
    user: str
    proof: str
    made: datetime
    seen: datetime
    expires: datetime


class ConsoleSessions:
    """The sessions in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        idle: float,
        longest: float,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._idle = timedelta(seconds=idle)
        self._longest = timedelta(seconds=longest)
        self._clock = clock

    def open(self, user: str, proof: str) -> str:
        """Begin a session; return what the browser is to show."""
        shown, now = secrets.token_urlsafe(32), self._clock()
        rows = sessions_table.c
        with self._database.write(AREA) as connection:
            over = sa.or_(rows.expires <= now, rows.seen <= now - self._idle)
            connection.execute(sessions_table.delete().where(over))
            kept = connection.scalars(
                sa.select(rows.digest).where(rows.user == user).order_by(rows.seen.desc())
            ).all()
            ended = kept[MOST_PER_USER - 1 :]
            connection.execute(sessions_table.delete().where(rows.digest.in_(ended)))
            connection.execute(
                sessions_table.insert().values(
                    digest=digest_of(shown),
                    user=user,
                    proof=proof,
                    made=now,
                    seen=now,
                    expires=now + self._longest,
                )
            )
        return shown

    def find(self, shown: str) -> ConsoleSession | None:
        """Return the session that a browser shows, and note that it is used."""
        digest, now = digest_of(shown), self._clock()
        mine = sessions_table.c.digest == digest
        with self._database.read() as connection:
            row = connection.execute(sa.select(sessions_table).where(mine)).one_or_none()
        if row is None or row.expires <= now or row.seen <= now - self._idle:
            return None
        if now - row.seen >= _TOUCH:
            with self._database.write(AREA) as connection:
                connection.execute(sessions_table.update().where(mine).values(seen=now))
        return ConsoleSession(*row)

    def holds(self, session: ConsoleSession) -> bool:
        """Say whether a session has not ended; looking does not prolong it."""
        mine, now = sessions_table.c.digest == session.digest, self._clock()
        with self._database.read() as connection:
            row = connection.execute(sa.select(sessions_table).where(mine)).one_or_none()
        return row is not None and row.expires > now and row.seen > now - self._idle

    def close(self, session: ConsoleSession) -> None:
        """End a session."""
        with self._database.write(AREA) as connection:
            mine = sessions_table.c.digest == session.digest
            connection.execute(sessions_table.delete().where(mine))

    def close_others(self, session: ConsoleSession) -> int:
        """End all other sessions of its user; return how many there were."""
        rows = sessions_table.c
        others = sa.and_(rows.user == session.user, rows.digest != session.digest)
        with self._database.write(AREA) as connection:
            return connection.execute(sessions_table.delete().where(others)).rowcount

    def of(self, user: str) -> list[ConsoleSession]:
        """Return the sessions of a user, the one that was used last first."""
        rows, now = sessions_table.c, self._clock()
        holding = sa.and_(rows.user == user, rows.expires > now, rows.seen > now - self._idle)
        wanted = sa.select(sessions_table).where(holding).order_by(rows.seen.desc())
        with self._database.read() as connection:
            return [ConsoleSession(*row) for row in connection.execute(wanted)]

    def make_link(self) -> str:
        """Make a one-time link's secret; no earlier one is good any more."""
        shown = secrets.token_urlsafe(32)
        with self._database.write(AREA) as connection:
            connection.execute(links_table.delete())
            connection.execute(
                links_table.insert().values(
                    digest=digest_of(shown), expires=self._clock() + LINK_LIFE
                )
            )
        return shown

    def has_link(self, shown: str) -> bool:
        """Say whether a link is good, and leave it so."""
        rows = links_table.c
        good = sa.and_(rows.digest == digest_of(shown), rows.expires > self._clock())
        with self._database.read() as connection:
            return connection.execute(sa.select(rows.digest).where(good)).first() is not None

    def use_link(self, shown: str) -> bool:
        """Say whether a link was good; it is not any more."""
        rows = links_table.c
        good = sa.and_(rows.digest == digest_of(shown), rows.expires > self._clock())
        with self._database.write(AREA) as connection:
            return connection.execute(links_table.delete().where(good)).rowcount == 1


def digest_of(shown: str) -> str:
    """Return what is kept of what a browser shows."""
    return sha256(shown.encode()).hexdigest()
