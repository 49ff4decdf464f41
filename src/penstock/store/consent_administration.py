"""Consent at the hands of the data officer: choices entered and looked at, by right, on record.

    who asks, proved ──▶ a right to administer? ──▶ a purpose that there is? ──▶ entered, recorded
           │no                     │no
           └── denied, recorded ───┘

Rules that hold here:
- A choice and its entry in the audit log come in one transaction. The entry names the
  person and who entered it by pseudonyms, and the purpose.
- What a person chose is personal too: to look at it takes the same right, and is recorded.
- An opt-out of a purpose that nobody has declared would change nothing and look as if it did:
  it is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection

from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right
from penstock.errors import DeniedError, UsageError, quote
from penstock.model.kinds import Purpose, Stream, View
from penstock.model.purposes import check_purpose
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import Choice, ConsentBook, ConsentStanding, PastChoice
from penstock.store.opt_outs import touches

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

    def history(self, user: str, subject: str) -> list[PastChoice]:
        """Return all choices of a person, oldest first."""
        right = self._require_right(user)
        found = self.book.history(subject)
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
