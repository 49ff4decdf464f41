"""Consent: who opted out of which purposes, kept under keyed hashes of people.

    who asks, proved ──▶ a right to administer? ──▶ a purpose that there is? ──▶ entered, recorded
           │no                     │no                                                │
           └── denied, recorded ───┘                                                  ▼
    enforcement point ◀── opt_outs() ◀── OptOuts ◀── consent_changes: one row per change of mind

Rules that hold here:
- No name is in the database: a subject is marked by HMAC-SHA-256 under a key that is not in
  it. Another key would find nobody and let everybody through; so the database knows the key
  by a fingerprint, and refuses any other.
- History is never rewritten. The newest row of a subject and a purpose says what holds.
- `opt_outs` holds every change that was committed before it was called, or it raises: who
  does not know what people want publishes nothing.
- A choice and its entry in the audit log come in one transaction. The entry names the
  person and who entered it by pseudonyms, and the purpose.
- What a person chose is personal too: to look at it takes the same right, and is recorded.
- An opt-out of a purpose that nobody has declared would change nothing and look as if it did:
  it is refused.
"""

from __future__ import annotations

import difflib
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Index, Integer, String, Table

from penstock.clock import utc_now
from penstock.config.secrets import SecretFile, generate_key
from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right
from penstock.errors import DeniedError, UnavailableError, UsageError, quote
from penstock.model.kinds import Purpose, Stream, View
from penstock.model.purposes import check_purpose
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database, lock_area
from penstock.store.opt_outs import DIGITS, OptOuts, SubjectMarks, touches
from penstock.store.schema import MARK_LENGTH, NAME_LENGTH, Moment, metadata

AREA: Final = "consent"
_ONLY: Final = 1

changes_table = Table(
    "consent_changes",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("mark", String(MARK_LENGTH), nullable=False),
    Column("at", Moment, nullable=False),
    Column("subject", String(DIGITS), nullable=False),
    Column("purpose", String(NAME_LENGTH), nullable=False),
    Column("choice", String(8), nullable=False),
    Index("ix_consent_changes_subject_purpose", "subject", "purpose"),
)
key_table = Table(
    "consent_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("fingerprint", String(DIGITS), nullable=False),
)

_NEWEST: Final = sa.select(sa.func.max(changes_table.c.epoch)).scalar_subquery()
# Statements are made once: making one costs more than SQLite takes to answer it.
_MARKS: Final = sa.select(changes_table.c.epoch, changes_table.c.mark).where(
    sa.or_(changes_table.c.epoch == _NEWEST, changes_table.c.epoch == sa.bindparam("asked"))
)
_SINCE: Final = (
    sa.select(changes_table.c.subject, changes_table.c.purpose, changes_table.c.choice)
    .where(changes_table.c.epoch > sa.bindparam("since"))
    .order_by(changes_table.c.epoch)
)


class ConsentUnknownError(UnavailableError):
    """What people want cannot be learnt now; it may be later."""


class Choice(StrEnum):
    """What a person wants of a purpose."""

    OPT_OUT = "opt-out"
    OPT_IN = "opt-in"


@dataclass(frozen=True, slots=True)
class ConsentStanding:
    """What a person chose for a purpose last, and when."""

    purpose: str
    choice: Choice
    at: datetime


Then = Callable[[Connection, list[str]], None]
"""Writes further rows within the transaction of changes, given whose choice changed."""


class ConsentBook:
    """The choices of people in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        marks: SubjectMarks,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.marks = marks
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._held = OptOuts(marks=marks)
        self._mark: str | None = None

    @classmethod
    def open(cls, database: Database, key: SecretFile) -> Self:
        """Open with the key in a file, which is made where nobody has opted out of anything."""
        with database.read() as connection:
            known = connection.scalar(sa.select(key_table.c.fingerprint))
        book = cls(
            database, SubjectMarks(key.read() if known else key.read_or_create(generate_key))
        )
        book._check_key(known)
        return book

    # --- choices ---

    def choose(
        self,
        choice: Choice,
        subjects: Sequence[str],
        purpose: str,
        *,
        then: Then | None = None,
    ) -> list[str]:
        """Note what people want of a purpose; return those who wanted otherwise before.

        It holds when this returns. `then` may write further rows into the same transaction,
        such as the record of it; it is called even if nothing changes.
        """
        with self._database.write(AREA) as connection:
            changed = self.choose_within(connection, choice, subjects, purpose)
            if then is not None:
                then(connection, changed)
        return changed

    def choose_within(
        self, connection: Connection, choice: Choice, subjects: Sequence[str], purpose: str
    ) -> list[str]:
        """Note what people want, as part of a transaction of `Database.write`."""
        check_purpose(purpose)
        marked = {self.marks.of(subject): subject for subject in subjects}
        lock_area(connection, AREA)
        self._claim_key(connection)
        changed = []
        epoch = connection.scalar(sa.select(_NEWEST)) or 0
        for mark, subject in marked.items():
            newest = (
                sa.select(changes_table.c.choice)
                .where(changes_table.c.subject == mark, changes_table.c.purpose == purpose)
                .order_by(changes_table.c.epoch.desc())
                .limit(1)
            )
            if (connection.scalar(newest) or Choice.OPT_IN) != choice:
                epoch += 1
                connection.execute(
                    changes_table.insert().values(
                        epoch=epoch, mark=uuid.uuid4().hex, at=self._clock(),
                        subject=mark, purpose=purpose, choice=choice.value,
                    )
                )  # fmt: skip
                changed.append(subject)
        return changed

    def standings(self, subject: str) -> list[ConsentStanding]:
        """Return what a person chose, for each purpose, in the order of purposes."""
        rows = (
            sa.select(changes_table.c.purpose, changes_table.c.choice, changes_table.c.at)
            .where(changes_table.c.subject == self.marks.of(subject))
            .order_by(changes_table.c.epoch)
        )
        with self._database.read() as connection:
            self._check_key(connection.scalar(sa.select(key_table.c.fingerprint)))
            found = {
                row.purpose: ConsentStanding(row.purpose, Choice(row.choice), row.at)
                for row in connection.execute(rows)
            }
        return [found[purpose] for purpose in sorted(found)]

    # --- what holds ---

    def opt_outs(self) -> OptOuts:
        """Return all opt-outs of now; costs one small query if nothing changed."""
        try:
            with self._lock, self._database.read() as connection:
                return self._look(connection)
        except ConsentUnknownError:
            raise
        except UnavailableError as error:
            raise ConsentUnknownError(
                f"who opted out of what is not known: {error.message}", fix=error.fix
            ) from error

    def _look(self, connection: Connection) -> OptOuts:
        held = self._held
        marks = {row.epoch: row.mark for row in connection.execute(_MARKS, {"asked": held.epoch})}
        epoch = max(marks, default=0)
        if epoch == held.epoch and marks.get(epoch) == self._mark:
            return held
        self._check_key(connection.scalar(sa.select(key_table.c.fingerprint)))
        if marks.get(held.epoch) != self._mark:
            # A restored database tells another history: what was held is not part of it.
            held = OptOuts(marks=self.marks)
        changed: dict[str, set[str]] = {}
        for subject, purpose, choice in connection.execute(_SINCE, {"since": held.epoch}):
            if purpose not in changed:
                changed[purpose] = set(held.by_purpose.get(purpose, ()))
            who = changed[purpose]
            who.add(subject) if choice == Choice.OPT_OUT else who.discard(subject)
        now = dict(held.by_purpose)
        now.update((purpose, frozenset(who)) for purpose, who in changed.items())
        now = {purpose: who for purpose, who in now.items() if who}
        self._held, self._mark = OptOuts(epoch, now, self.marks), marks.get(epoch)
        return self._held

    # --- the key ---

    def _claim_key(self, connection: Connection) -> None:
        """Let the database know the key, from the first choice on."""
        known = connection.scalar(sa.select(key_table.c.fingerprint))
        if known is None:
            values = {"id": _ONLY, "fingerprint": self.marks.fingerprint}
            connection.execute(key_table.insert().values(values))
        self._check_key(known)

    def _check_key(self, known: str | None) -> None:
        if known is not None and known != self.marks.fingerprint:
            raise ConsentUnknownError(
                "the key of consent is another than the one that people were marked with",
                fix="bring the file back that consent.key names, from where people opt out",
            )


KIND: Final = "consent"
MOST_PEOPLE: Final = 10_000
# What the audit log takes for a name.
_NAME: Final = re.compile(r"\w[\w .:/+*#-]{0,199}")


class ConsentAdministration:
    """Takes choices under the definitions of one epoch."""

    def __init__(
        self,
        book: ConsentBook,
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

    def deny(self, user: str, code: str, message: str, fix: str) -> DeniedError:
        """Record that somebody is denied; return the error to raise."""
        self._log.append([self._entry("refused", Outcome.DENIED, user, reason=code)])
        return DeniedError(message, fix=fix)

    def enter(self, user: str, choice: Choice, subjects: Sequence[str], purpose: str) -> list[str]:
        """Enter what people want of a purpose; return those who wanted otherwise before."""
        right = self._require_right(user)
        if not 0 < len(subjects) <= MOST_PEOPLE:
            raise UsageError(
                f"{len(subjects)} people are named at once", fix=f"name 1 to {MOST_PEOPLE}"
            )
        if choice is Choice.OPT_OUT:
            self._require_purpose(purpose)

        def record(connection: Connection, changed: list[str]) -> None:
            entries = [
                self._entry(choice, Outcome.DONE, user, subject, right, **_name(purpose))
                for subject in changed
            ]
            if entries:
                self._log.append_within(connection, entries)

        return self.book.choose(choice, subjects, purpose, then=record)

    def show(self, user: str, subject: str) -> list[ConsentStanding]:
        """Return what a person chose."""
        right = self._require_right(user)
        found = self.book.standings(subject)
        self._log.append([self._entry("shown", Outcome.ALLOWED, user, subject, right)])
        return found

    def views_of(self, purpose: str) -> tuple[list[str], list[str]]:
        """Return the views that leave people out for a purpose, and those that cannot.

        A stream without a subject does not say whom its records are about.
        """
        able: list[str] = []
        unable: list[str] = []
        streams = self._definitions.of(Stream)
        for name, view in self._definitions.of(View).items():
            if touches(purpose, view.purposes):
                (able if streams[view.stream].subject is not None else unable).append(name)
        return able, unable

    def _require_right(self, user: str) -> str:
        right = find_right(self._definitions, user, lambda it: it.administer)
        if right is not None:
            return right
        raise self.deny(
            user,
            "right",
            f"{quote(user)} has no right to see or enter what people opted out of",
            "ask the data officer for a `right` with `administer: true`",
        )

    def _require_purpose(self, purpose: str) -> None:
        check_purpose(purpose)
        known = self._definitions.of(Purpose)
        if purpose not in known:
            near = difflib.get_close_matches(purpose, known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else "declare it: `kind: purpose`"
            raise UsageError(f"there is no purpose {quote(purpose)}", fix=fix)

    def _entry(
        self,
        what: str,
        outcome: Outcome,
        user: str,
        subject: str | None = None,
        right: str | None = None,
        **details: Any,
    ) -> Entry:
        return Entry.make(
            f"{KIND}.{what}",
            outcome,
            actor=self._people.person(user),
            subject=None if subject is None else self._people.person(subject),
            rule=None if right is None else self._people.rule(f"right/{right}"),
            epoch=self._epoch,
            **details,
        )


def _name(purpose: str) -> dict[str, str]:
    return {"purpose": purpose} if _NAME.fullmatch(purpose) else {}
