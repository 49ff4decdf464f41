"""The privacy broker: who may hand in, acknowledge and complete which requests.

Rules that hold here:
- A publisher hands in what its definition offers, for the controls it names; a service sees and
  answers its own requests alone. Whoever asks is a user with one of the definition's subjects.
- What is unknown and what belongs to others get the same answer: nobody learns which requests
  there are.
- Every request, completion and redrive is in the audit log, in the same transaction as far as it
  changes what is allowed. The person appears as a pseudonym.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right, find_subjects
from penstock.errors import DeniedError, UsageError, quote
from penstock.model.kinds import Control, ControlPublisher, ControlSubscriber, Purpose
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.opt_outs import SUBJECT_LIMIT
from penstock.store.rights.progress import ProgressEvent, ProgressStatus
from penstock.store.rights.requests import Accepted, NewRequest, RequestBook
from penstock.store.rights.tables import KEY_LENGTH

KIND: Final = "rights"
_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH}}}", re.ASCII)
_UNKNOWN: Final = "there is no such publisher, service or request for this user"
_CHOICES: Final = frozenset({"opt-in", "opt-out"})


class Submission(NamedTuple):
    """What a publisher says."""

    publisher: str
    key: str
    """Names the request for good: to repeat it is to say the same key again."""
    control: str
    action: str
    subject: str
    categories: tuple[str, ...] = ()


class PrivacyBroker:
    """Takes requests and answers under the definitions of one epoch."""

    def __init__(
        self,
        book: RequestBook,
        log: AuditLog,
        people: Pseudonyms,
        definitions: DefinitionSet,
        epoch: int,
    ) -> None:
        self.book = book
        self._log = log
        self._people = people
        self.definitions = definitions
        self.epoch = epoch

    def submit(self, user: str, submissions: Sequence[Submission]) -> list[Accepted]:
        """Accept what a publisher hands in, all or none of it."""
        wanted = [self._resolve(user, submission) for submission in submissions]

        def record(connection: Connection, made: Sequence[Accepted]) -> None:
            entries = [
                self._entry(
                    "accepted", user, request.subject,
                    request=answer.id, control=request.control, operation=request.action,
                )
                for request, answer in zip(wanted, made, strict=True)
                if not answer.repeated
            ]  # fmt: skip
            if entries:
                self._log.append_within(connection, entries)

        return self.book.submit(wanted, self.epoch, then=record)

    def acknowledge(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service knows of a request."""
        return self._answer(user, request, subscriber, ProgressEvent.ACKNOWLEDGED)

    def complete(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service has done its part."""
        done = self._answer(user, request, subscriber, ProgressEvent.COMPLETED)
        self._log.append([self._entry("completed", user, None, request=request)])
        return done

    def redrive(self, user: str, request: str | None = None) -> int:
        """Let services be told again that failed a request, or any; return how many."""
        again = self.book.redrive(self.book.lost(request))
        self._log.append([self._entry("redriven", user, None, count=again)])
        return again

    def require_administration(self, user: str) -> None:
        """Refuse whoever has no right to look at requests of others."""
        if find_right(self.definitions, user, lambda it: it.administer) is None:
            raise self.deny(user, f"{quote(user)} has no right to administer privacy requests")

    def require_subscriber(self, user: str, subscriber: str) -> ControlSubscriber:
        """Return a service; refuse whoever does not act for it."""
        found = self.definitions.get(ControlSubscriber, subscriber)
        if found is None or not self.is_among(user, found.subjects):
            raise self.deny(user)
        return found

    def require_publisher(self, user: str, publisher: str) -> ControlPublisher:
        """Return a publisher; refuse whoever does not act for it."""
        found = self.definitions.get(ControlPublisher, publisher)
        if found is None or not self.is_among(user, found.subjects):
            raise self.deny(user)
        return found

    def _answer(
        self, user: str, request: str, subscriber: str, event: ProgressEvent
    ) -> ProgressStatus:
        self.require_subscriber(user, subscriber)
        after = self.book.note(request, subscriber, event)
        if after is None:
            raise self.deny(user)
        return after

    def _resolve(self, user: str, given: Submission) -> NewRequest:
        """Hold a submission against the definitions."""
        publisher = self.require_publisher(user, given.publisher)
        control = self.definitions.get(Control, given.control)
        if control is None or given.control not in publisher.controls:
            raise UsageError(
                f"{quote(given.publisher)} offers no control {quote(given.control)}",
                fix=f"it offers {', '.join(publisher.controls)}",
            )
        expected = _CHOICES if control.stateful else {control.operation}
        if given.action not in expected:
            raise UsageError(
                f"{quote(given.action)} is nothing that {quote(control.name)} takes",
                fix=f"say {' or '.join(sorted(expected))}",
            )
        for category in given.categories:
            if category not in control.categories:
                raise UsageError(
                    f"the control {quote(control.name)} has no category {quote(category)}",
                    fix=f"its categories are {', '.join(control.categories) or 'none'}",
                )
        if not _KEY.fullmatch(given.key):
            raise UsageError(
                "the key of a request is 1 to 128 visible characters of ASCII",
                fix="use a new UUID for each request",
            )
        if not given.subject or len(given.subject) > SUBJECT_LIMIT:
            # Not quoted: it names somebody.
            raise UsageError(
                "the request does not say whom it is about", fix="name the person as records do"
            )
        return NewRequest(
            given.publisher,
            given.key,
            control.name,
            given.action,
            given.subject,
            tuple(sorted(set(given.categories))),
            tuple(self._list_subscribers(control.name, set(given.categories))),
            tuple(self._list_purposes(control, given.categories)) if control.stateful else (),
        )

    def _list_subscribers(self, control: str, categories: set[str]) -> list[str]:
        """Return the services concerned: those of the control, and of one of its categories."""
        return [
            name
            for name, it in sorted(self.definitions.of(ControlSubscriber).items())
            if it.control == control
            and (not categories or not it.categories or categories & set(it.categories))
        ]

    def _list_purposes(self, control: Control, categories: Sequence[str]) -> list[str]:
        """Return the purposes that a choice is about; a category is a purpose below them."""
        if not categories:
            return list(control.purposes)
        declared = self.definitions.of(Purpose)
        narrower = [f"{purpose}/{it}" for purpose in control.purposes for it in categories]
        return [purpose for purpose in narrower if purpose in declared]

    def is_among(self, user: str, subjects: Sequence[str]) -> bool:
        """Say whether a user is one of these, by name or by a group."""
        return not find_subjects(self.definitions, user).isdisjoint(subjects)

    def deny(self, user: str, message: str = _UNKNOWN) -> DeniedError:
        """Record that somebody is denied; return the error to raise."""
        self._log.append([self._entry("refused", user, None, outcome=Outcome.DENIED)])
        return DeniedError(message, fix="ask the data officer for the right, or to be named there")

    def _entry(
        self,
        what: str,
        user: str,
        subject: str | None,
        outcome: Outcome = Outcome.DONE,
        **details: Any,
    ) -> Entry:
        return Entry.make(
            f"{KIND}.{what}",
            outcome,
            actor=self._people.person(user),
            subject=None if subject is None else self._people.person(subject),
            epoch=self.epoch,
            **details,
        )
