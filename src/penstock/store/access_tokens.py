"""What proves who calls: access tokens of services; sessions and one-time links of the console.

    pst_ID_SECRET      the identifier finds the row, the secret is compared with its hash

    first start ──▶ link (once, an hour) ──▶ an account that administers
    password, identity provider ──▶ session ──▶ idle | over | signed out | ended for all

Rules that hold here:
- A token is shown once, when it is made. The database holds SHA-256 of its secret: 256 random bits
  need no slow hash.
- A token is bound to a user, and ends by itself; revoked or expired, it proves nothing from that
  moment on. What is unknown, wrong, expired and revoked is answered alike.
- A user makes, lists and revokes their own tokens; for those of others it takes the right to
  administer. Who is blocked makes none.
- That a token is made or revoked is in the audit log, in the same transaction.
- The database holds SHA-256 of what a browser shows: 256 random bits need no slow hash.
- A session ends by itself: after so long without a call, and after so long in all.
- It stands on a proof: where the password changes or is removed, it is over. Who compares says so.
- A user has so many sessions at most; the one that was used least recently ends for a new one.
- A link is good for one use and one hour. Making one ends all before it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, Index, String, Table

from penstock.clock import utc_now
from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right, find_subjects
from penstock.errors import DeniedError, UsageError, quote
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.schema import NAME_LENGTH, Moment, metadata

AREA: Final = "tokens"
KIND: Final = "token"
ID_LENGTH: Final = 16
NOTE_LENGTH: Final = 100
LONGEST_DAYS: Final = 366
MOST_PER_USER: Final = 100
TOKEN_LIMIT: Final = 80
_TOKEN: Final = re.compile(r"pst_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NOBODY: Final = sha256(b"").hexdigest()

tokens_table = Table(
    "access_tokens",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("note", String(NOTE_LENGTH), nullable=False),
    Column("made", Moment, nullable=False),
    Column("expires", Moment, nullable=False),
    Column("revoked", Moment),
    Index("ix_access_tokens_user", "user"),
)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it may be shown: without its secret."""

    id: str
    user: str
    note: str
    made: datetime
    expires: datetime
    revoked: datetime | None

    def status(self, now: datetime) -> str:
        """Say in a word whether it still proves anything."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires <= now else "valid"


class TokenBook:
    """The tokens in a database. Threads may share it."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self.clock = clock

    def find_user(self, token: str) -> str | None:
        """Return whom a token proves; None where it proves nobody."""
        found = _TOKEN.fullmatch(token) if len(token) <= TOKEN_LIMIT else None
        if found is None:
            return None
        rows = tokens_table.c
        wanted = sa.select(rows.digest, rows.user, rows.expires, rows.revoked)
        with self.database.read() as connection:
            row = connection.execute(wanted.where(rows.id == found[1])).one_or_none()
        # Compared whether or not there is one, so that both take as long.
        right = hmac.compare_digest(row.digest if row else _NOBODY, digest_of(found[2]))
        if row is None or not right or row.revoked is not None or row.expires <= self.clock():
            return None
        return str(row.user)

    def tokens(self, user: str | None = None) -> list[AccessToken]:
        """Return the tokens of a user, or of all, the newest first."""
        rows = tokens_table.c
        wanted = sa.select(tokens_table).order_by(rows.made.desc(), rows.id)
        if user is not None:
            wanted = wanted.where(rows.user == user)
        with self.database.read() as connection:
            return [
                AccessToken(row.id, row.user, row.note, row.made, row.expires, row.revoked)
                for row in connection.execute(wanted)
            ]


class TokenAdministration:
    """Makes, lists and revokes tokens for those who may."""

    def __init__(
        self,
        book: TokenBook,
        log: AuditLog,
        people: Pseudonyms,
        definitions: DefinitionSet,
        epoch: int,
    ) -> None:
        self.book = book
        self._log = log
        self._people = people
        self._definitions = definitions
        self._epoch = epoch

    def make(self, asker: str, user: str, *, days: int, note: str = "") -> tuple[str, AccessToken]:
        """Make a token for a user; return it, and what may be shown of it later."""
        self._require(asker, user)
        if not 0 < days <= LONGEST_DAYS:
            raise UsageError(
                f"a token cannot last {days} days", fix=f"choose 1 to {LONGEST_DAYS} days"
            )
        if len(note) > NOTE_LENGTH or not note.isprintable():
            raise UsageError("the note of a token is too long, or not printable", fix="shorten it")
        if not find_subjects(self._definitions, user):
            raise UsageError(f"{quote(user)} is blocked", fix="`penstock user unblock` first")
        now = self.book.clock()
        identity, secret = secrets.token_hex(ID_LENGTH // 2), secrets.token_urlsafe(32)
        made = AccessToken(identity, user, note, now, now + timedelta(days=days), None)
        rows = tokens_table.c
        valid = sa.and_(rows.user == user, rows.revoked.is_(None), rows.expires > now)
        with self.book.database.write(AREA) as connection:
            count = connection.scalar(sa.select(sa.func.count()).where(valid)) or 0
            if count >= MOST_PER_USER:
                raise UsageError(
                    f"{quote(user)} has {count} valid tokens", fix="revoke some that are not used"
                )
            connection.execute(
                tokens_table.insert().values(
                    id=identity, digest=digest_of(secret), user=user, note=note,
                    made=made.made, expires=made.expires,
                )
            )  # fmt: skip
            self._log.append_within(connection, [self._entry("made", asker, user, key=identity)])
        return f"pst_{identity}_{secret}", made

    def tokens(self, asker: str, user: str | None = None) -> list[AccessToken]:
        """Return the tokens of a user; of all, for those with the right to administer."""
        if user is None and not self._administers(asker):
            user = asker
        elif user is not None:
            self._require(asker, user)
        return self.book.tokens(user)

    def revoke(self, asker: str, identity: str) -> AccessToken:
        """End a token for good; one that has ended stays as it was."""
        rows = tokens_table.c
        with self.book.database.write(AREA) as connection:
            row = connection.execute(
                sa.select(tokens_table).where(rows.id == identity)
            ).one_or_none()
            known = row is not None and self._may(asker, row.user)
            ended = None if row is None else row.revoked or self.book.clock()
            if row is not None and known and row.revoked is None:
                mine = rows.id == identity
                connection.execute(tokens_table.update().where(mine).values(revoked=ended))
                entry = self._entry("revoked", asker, row.user, key=identity)
                self._log.append_within(connection, [entry])
        if row is None or not known:
            raise self.deny(asker, f"there is no token {quote(identity)} for this user")
        return AccessToken(row.id, row.user, row.note, row.made, row.expires, ended)

    def deny(self, asker: str, message: str) -> DeniedError:
        """Record that somebody is denied; return the error to raise."""
        self._log.append([self._entry("refused", asker, None, outcome=Outcome.DENIED)])
        return DeniedError(message, fix="`penstock tokens list` shows yours")

    def _administers(self, asker: str) -> bool:
        return find_right(self._definitions, asker, lambda it: it.administer) is not None

    def _may(self, asker: str, user: str) -> bool:
        own = asker == user and bool(find_subjects(self._definitions, asker))
        return own or self._administers(asker)

    def _require(self, asker: str, user: str) -> None:
        if not self._may(asker, user):
            raise self.deny(asker, f"{quote(asker)} has no right to tokens of other users")

    def _entry(
        self,
        what: str,
        asker: str,
        user: str | None,
        outcome: Outcome = Outcome.DONE,
        **details: Any,
    ) -> Entry:
        return Entry.make(
            f"{KIND}.{what}",
            outcome,
            actor=self._people.person(asker),
            subject=None if user is None else self._people.person(user),
            epoch=self._epoch,
            **details,
        )


def digest_of(secret: str) -> str:
    """Return what is kept of a secret: of a token's, and of what a browser shows."""
    return sha256(secret.encode()).hexdigest()


SESSION_AREA: Final = "console"
MOST_SESSIONS: Final = 20
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
        with self._database.write(SESSION_AREA) as connection:
            over = sa.or_(rows.expires <= now, rows.seen <= now - self._idle)
            connection.execute(sessions_table.delete().where(over))
            kept = connection.scalars(
                sa.select(rows.digest).where(rows.user == user).order_by(rows.seen.desc())
            ).all()
            ended = kept[MOST_SESSIONS - 1 :]
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
            with self._database.write(SESSION_AREA) as connection:
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
        with self._database.write(SESSION_AREA) as connection:
            mine = sessions_table.c.digest == session.digest
            connection.execute(sessions_table.delete().where(mine))

    def close_others(self, session: ConsoleSession) -> int:
        """End all other sessions of its user; return how many there were."""
        rows = sessions_table.c
        others = sa.and_(rows.user == session.user, rows.digest != session.digest)
        with self._database.write(SESSION_AREA) as connection:
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
        with self._database.write(SESSION_AREA) as connection:
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
        with self._database.write(SESSION_AREA) as connection:
            return connection.execute(links_table.delete().where(good)).rowcount == 1
