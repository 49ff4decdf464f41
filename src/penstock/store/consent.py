"""Profiles: what people chose, and the purposes that are prohibited for them by it.

    a choice ──▶ note_within ──▶ rights_states    what holds, by control and category, or purpose
                     │     └───▶ rights_choices   history: every choice, never rewritten
                     └─────────▶ consent_changes  where a prohibition begins or ends: the epoch
    enforcement point ◀── opt_outs() ◀── OptOuts ◀──┘

Rules that hold here:
- One place writes all three, in one transaction: `note_within`. A purpose is prohibited for a
  person exactly as long as some choice in force prohibits it: an opt-in takes back what was
  chosen in the same place, and nothing that was chosen elsewhere.
- A choice of a purpose itself stands under no control (`DIRECT`). A choice of a whole control
  replaces the choices of its categories.
- No name is in the database: a subject is marked by HMAC-SHA-256 under a key that is not in
  it. Another key would find nobody and let everybody through; so the database knows the key
  by a fingerprint, and refuses any other.
- `opt_outs` holds every change that was committed before it was called, or it raises: who
  does not know what people want publishes nothing.
- What prohibits something is answered when every gateway keeps to it (`EnforcementPoints`).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Index, Integer, String, Table, Text

from penstock.clock import utc_now
from penstock.config.secrets import SecretFile, generate_key
from penstock.errors import UnavailableError
from penstock.model.purposes import check_purpose
from penstock.store.database import Database, insert_rows, lock_area
from penstock.store.enforcement_points import EnforcementPoints
from penstock.store.opt_outs import DIGITS, OptOuts, SubjectMarks
from penstock.store.schema import CHANNEL, MARK_LENGTH, NAME_LENGTH, Moment, metadata

AREA: Final = "consent"
DIRECT: Final = ""
"""Stands for the control where somebody chose a purpose itself."""
WHOLE: Final = ""
"""Stands for a control as a whole where a category could stand."""
_ONLY: Final = 1
_SUBJECTS_AT_ONCE: Final = 500

states_table = Table(
    "rights_states",
    metadata,
    Column("subject", String(DIGITS), primary_key=True),
    Column("control", String(NAME_LENGTH), primary_key=True),
    Column("category", String(NAME_LENGTH), primary_key=True),
    Column("state", String(8), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("purposes", Text, nullable=False, server_default="[]"),
)
choices_table = Table(
    "rights_choices",
    metadata,
    Column("subject", String(DIGITS), primary_key=True),
    Column("control", String(NAME_LENGTH), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("state", String(8), nullable=False),
    Column("purposes", Text, nullable=False),  # by category, as JSON
    Column("origin", String(NAME_LENGTH), nullable=False),
    Column("at", Moment, nullable=False),
)
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
MARKS: Final = sa.select(changes_table.c.epoch, changes_table.c.mark).where(
    sa.or_(changes_table.c.epoch == _NEWEST, changes_table.c.epoch == sa.bindparam("asked"))
)
SINCE: Final = (
    sa.select(
        changes_table.c.epoch,
        changes_table.c.subject,
        changes_table.c.purpose,
        changes_table.c.choice,
    )
    .where(changes_table.c.epoch > sa.bindparam("since"))
    .order_by(changes_table.c.epoch)
)
FINGERPRINT: Final = sa.select(key_table.c.fingerprint)
_NOTIFY: Final = sa.select(sa.func.pg_notify(CHANNEL, "consent"))
_REPLACED: Final = states_table.delete().where(
    states_table.c.subject == sa.bindparam("of_subject"),
    states_table.c.control == sa.bindparam("of_control"),
)


class ConsentUnknownError(UnavailableError):
    """What people want cannot be learnt now; it may be later."""


class Choice(StrEnum):
    """What a person wants of a purpose."""

    OPT_OUT = "opt-out"
    OPT_IN = "opt-in"


class ProfileChoice(NamedTuple):
    """A choice that a person makes now."""

    subject: str
    """The mark of the person."""
    state: Choice
    purposes: Mapping[str, Sequence[str]]
    """What an opt-out prohibits: by category, `WHOLE`, or under `DIRECT` by purpose."""
    control: str = DIRECT
    origin: str = ""
    """The publisher that took it in."""


@dataclass(frozen=True, slots=True)
class ConsentStanding:
    """What a person chose for a purpose last, when, and where."""

    purpose: str
    choice: Choice
    at: datetime
    control: str = DIRECT
    category: str = WHOLE


@dataclass(frozen=True, slots=True)
class PastChoice:
    """A choice as it was made."""

    at: datetime
    choice: Choice
    control: str
    categories: tuple[str, ...]
    """Categories of the control; none: the whole."""
    purposes: tuple[str, ...]
    version: int
    origin: str


class _State(NamedTuple):
    state: str
    version: int
    at: datetime
    purposes: tuple[str, ...]


_Profile = dict[tuple[str, str], _State]
"""By control and category."""

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
        self.points = EnforcementPoints(database)
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._held = OptOuts(marks=marks)
        self._mark: str | None = None

    @classmethod
    def open(cls, database: Database, key: SecretFile) -> Self:
        """Open with the key in a file, which is made where nobody has opted out of anything."""
        with database.read() as connection:
            known = connection.scalar(FINGERPRINT)
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

        It holds at every gateway when this returns. `then` may write further rows into the same
        transaction, such as the record of it; it is called even if nothing changes.
        """
        check_purpose(purpose)
        marked = {self.marks.of(subject): subject for subject in subjects}
        with self._database.write(AREA) as connection:
            versions = self.note_within(
                connection, [ProfileChoice(mark, choice, {purpose: (purpose,)}) for mark in marked]
            )
            noted = zip(marked.values(), versions, strict=True)
            changed = [who for who, version in noted if version]
            if then is not None:
                then(connection, changed)
        if choice is Choice.OPT_OUT:
            self.await_enforcement()
        return changed

    def note_within(self, connection: Connection, choices: Sequence[ProfileChoice]) -> list[int]:
        """Note what people want, in this order, within a transaction of `Database.write`.

        Returns the version of each: 0 for a choice of a purpose itself that changes nothing, which
        is not noted; one of a control always is. Who answers to a person who opted out calls
        `await_enforcement` after the commit.
        """
        lock_area(connection, AREA)
        self._claim_key(connection)
        now = self._clock()
        profiles = _read_profiles(connection, {it.subject for it in choices})
        held = {(who, control) for who, profile in profiles.items() for control, _ in profile}
        versions: list[int] = []
        past: list[dict[str, Any]] = []
        changes: list[tuple[str, str, Choice]] = []
        touched: set[tuple[str, str]] = set()
        for choice in choices:
            subject, profile = choice.subject, profiles[choice.subject]
            before = _prohibited(profile)
            version = _note(profile, choice, now)
            after = _prohibited(profile)
            changes += [(subject, it, Choice.OPT_OUT) for it in sorted(after - before)]
            changes += [(subject, it, Choice.OPT_IN) for it in sorted(before - after)]
            versions.append(version)
            if version:
                touched.add((subject, choice.control))
                purposes = {name: list(them) for name, them in choice.purposes.items()}
                past.append(
                    {
                        "subject": subject, "control": choice.control, "version": version,
                        "state": choice.state.value, "purposes": json.dumps(purposes),
                        "origin": choice.origin, "at": now,
                    }
                )  # fmt: skip
        if past:
            _write_states(connection, profiles, touched, held & touched)
            insert_rows(connection, choices_table, past)
        if changes:
            self._raise_epoch(connection, changes, now)
        return versions

    def await_enforcement(self) -> None:
        """Return when no gateway delivers any more what was prohibited before the call."""
        try:
            with self._database.read() as connection:
                epoch = connection.scalar(sa.select(_NEWEST)) or 0
            self.points.wait(epoch)
        except UnavailableError as error:
            raise ConsentUnknownError(
                "the choice is stored, and whether every gateway keeps to it is not known:"
                f" {error.message}",
                fix="repeat it: the answer comes when all do",
            ) from error

    def _raise_epoch(
        self, connection: Connection, changes: list[tuple[str, str, Choice]], now: datetime
    ) -> None:
        """Write which prohibitions begin and end, and tell those who listen."""
        epoch = connection.scalar(sa.select(_NEWEST)) or 0
        insert_rows(
            connection,
            changes_table,
            [
                {
                    "epoch": number, "mark": uuid.uuid4().hex, "at": now,
                    "subject": subject, "purpose": purpose, "choice": choice.value,
                }
                for number, (subject, purpose, choice) in enumerate(changes, epoch + 1)
            ],
        )  # fmt: skip
        if self._database.is_postgresql:
            connection.execute(_NOTIFY)

    def standings(self, subject: str) -> list[ConsentStanding]:
        """Return what a person chose, in the order of purposes, as the profile has it."""
        mark = self.marks.of(subject)
        with self._database.read() as connection:
            self._check_key(connection.scalar(FINGERPRINT))
            profile = _read_profiles(connection, {mark})[mark]
        found = [
            ConsentStanding(purpose, Choice(held.state), held.at, control, category)
            for (control, category), held in profile.items()
            for purpose in held.purposes or ("",)
        ]
        return sorted(found, key=lambda it: (it.purpose, it.control, it.category))

    def history(self, subject: str) -> list[PastChoice]:
        """Return all choices of a person, oldest first."""
        rows = (
            sa.select(choices_table)
            .where(choices_table.c.subject == self.marks.of(subject))
            .order_by(choices_table.c.at, choices_table.c.control, choices_table.c.version)
        )
        with self._database.read() as connection:
            self._check_key(connection.scalar(FINGERPRINT))
            return [_read_past(row) for row in connection.execute(rows)]

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
        marks = {row.epoch: row.mark for row in connection.execute(MARKS, {"asked": held.epoch})}
        epoch = max(marks, default=0)
        if epoch == held.epoch and marks.get(epoch) == self._mark:
            return held
        self._check_key(connection.scalar(FINGERPRINT))
        if marks.get(held.epoch) != self._mark:
            # A restored database tells another history: what was held is not part of it.
            held = OptOuts(marks=self.marks)
        changed: dict[str, set[str]] = {}
        for _, subject, purpose, choice in connection.execute(SINCE, {"since": held.epoch}):
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
        known = connection.scalar(FINGERPRINT)
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


def _read_profiles(connection: Connection, subjects: set[str]) -> dict[str, _Profile]:
    """Return what holds for these people, by their marks."""
    profiles: dict[str, _Profile] = {subject: {} for subject in subjects}
    wanted = sorted(subjects)
    for at in range(0, len(wanted), _SUBJECTS_AT_ONCE):
        some = states_table.c.subject.in_(wanted[at : at + _SUBJECTS_AT_ONCE])
        for row in connection.execute(sa.select(states_table).where(some)):
            profiles[row.subject][row.control, row.category] = _State(
                row.state, row.version, row.at, tuple(json.loads(row.purposes))
            )
    return profiles


def _prohibited(profile: _Profile) -> set[str]:
    opted_out = (it.purposes for it in profile.values() if it.state == Choice.OPT_OUT)
    return {purpose for purposes in opted_out for purpose in purposes}


def _note(profile: _Profile, choice: ProfileChoice, now: datetime) -> int:
    """Let a choice hold in a profile; return its version, 0 where it holds already."""
    own = {key: held for key, held in profile.items() if key[0] == choice.control}
    wanted = {(choice.control, it): tuple(them) for it, them in choice.purposes.items()}
    if choice.control == DIRECT:
        states = {own[key].state if key in own else Choice.OPT_IN for key in wanted}
        if states == {choice.state}:
            return 0
    elif WHOLE in choice.purposes:
        for key in own:
            del profile[key]
    version = max((held.version for held in own.values()), default=0) + 1
    for key, purposes in wanted.items():
        profile[key] = _State(choice.state.value, version, now, purposes)
    return version


def _write_states(
    connection: Connection,
    profiles: Mapping[str, _Profile],
    touched: set[tuple[str, str]],
    replaced: set[tuple[str, str]],
) -> None:
    """Write what the profiles say of these people and controls, in the place of what they said."""
    if replaced:
        connection.execute(
            _REPLACED, [{"of_subject": who, "of_control": control} for who, control in replaced]
        )
    insert_rows(
        connection,
        states_table,
        [
            {
                "subject": who, "control": control, "category": category, "state": held.state,
                "version": held.version, "at": held.at, "purposes": json.dumps(held.purposes),
            }
            for who, touched_control in touched
            for (control, category), held in profiles[who].items()
            if control == touched_control
        ],
    )  # fmt: skip


def _read_past(row: Any) -> PastChoice:
    by_category: dict[str, list[str]] = json.loads(row.purposes)
    purposes = {purpose for them in by_category.values() for purpose in them}
    categories = () if row.control == DIRECT else tuple(sorted(set(by_category) - {WHOLE}))
    return PastChoice(
        row.at, Choice(row.state), row.control, categories, tuple(sorted(purposes)),
        row.version, row.origin,
    )  # fmt: skip
