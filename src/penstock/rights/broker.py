"""The privacy broker: who may hand in, acknowledge and complete which requests.

    caller ──▶ queue ──▶ whoever has the turn commits for all that wait ──▶ answers

Rules that hold here:
- A publisher hands in what its definition offers, for the controls it names; a service sees and
  answers its own requests alone. Whoever asks is a user with one of the definition's subjects.
- What nobody would honour is not accepted: to say that it is done would be a lie.
- What is unknown and what belongs to others get the same answer: nobody learns which requests
  there are.
- Every request, completion, redrive and change of an address is in the audit log, in the same
  transaction as far as it changes what is allowed. The person appears as a pseudonym.
- Requests that come one by one at the same time share their commits: those who come while one is
  under way share the next one. An answer is given when the commit is done and gateways keep to
  it, never before. What fails the commit fails all that shared it, and nothing of it is stored; a
  request that is refused fails alone.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from penstock.clock import utc_now
from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right, find_subjects
from penstock.errors import DeniedError, UnavailableError, UsageError, quote
from penstock.model.kinds import Control, ControlPublisher, ControlSubscriber, Purpose
from penstock.model.kinds.controls import is_email, is_mobile
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import Choice
from penstock.store.opt_outs import SUBJECT_LIMIT
from penstock.store.rights.requests import Accepted, NewRequest, RequestBook
from penstock.store.rights.tables import (
    KEY_LENGTH,
    ProgressEvent,
    ProgressStatus,
    SealBrokenError,
)

TOGETHER: Final = 500
"""The most requests of one commit."""

Record = Callable[[NewRequest, Accepted], Entry]
"""Makes the entry of a request in the audit log."""


class _Batch:
    """What was committed together: its gateways are waited for once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enforced = False

    def await_enforcement(self, book: RequestBook, request: NewRequest) -> None:
        """Return when gateways keep to what was prohibited in this commit."""
        with self._lock:
            if not self._enforced:
                book.await_enforcement([request])
                self._enforced = True


class _Waiting:
    """A request on its way, in the thread of its caller."""

    __slots__ = ("answer", "batch", "epoch", "leads", "record", "request", "woken")

    def __init__(self, request: NewRequest, epoch: int, record: Record) -> None:
        self.request, self.epoch, self.record = request, epoch, record
        self.answer: Accepted | Exception = UnavailableError(
            "the commit was interrupted", fix="repeat it under the same key"
        )
        self.batch: _Batch | None = None
        self.leads = False
        self.woken = threading.Event()


class Intake:
    """Takes requests in. Threads share it; so do brokers of several epochs."""

    def __init__(self, book: RequestBook, log: AuditLog) -> None:
        self._book = book
        self._log = log
        self._queue: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._led = False
        """Whether somebody has the turn."""

    def submit(self, request: NewRequest, epoch: int, record: Record) -> Accepted:
        """Accept a request durably, with the entry in the audit log that `record` makes."""
        own = _Waiting(request, epoch, record)
        with self._lock:
            self._queue.append(own)
            if not self._led:
                self._led = own.leads = True
        if not own.leads:
            # Until it is answered, or has the turn. A lock would wake one caller after another,
            # and who comes first would commit alone while all others wait to read their answer.
            try:
                own.woken.wait()
            except BaseException:
                self._give_up(own)
                raise
        if own.leads:
            try:
                self._commit()
            finally:
                self._pass_on()
        if isinstance(own.answer, Exception):
            raise own.answer
        if own.batch is not None and request.action == Choice.OPT_OUT:
            # Others commit meanwhile: gateways learn of many choices at once.
            own.batch.await_enforcement(self._book, request)
        return own.answer

    def _give_up(self, own: _Waiting) -> None:
        """Wait no longer; a turn that came meanwhile is somebody else's."""
        with self._lock:
            if own in self._queue:
                self._queue.remove(own)
        if own.leads:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to whoever waits longest."""
        with self._lock:
            self._led = bool(self._queue)
            if self._led:
                self._queue[0].leads = True
                self._queue[0].woken.set()

    def _commit(self) -> None:
        """Commit what waits, oldest first; who has the turn is among it."""
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), TOGETHER))]

        def record(connection: Connection, made: Sequence[Accepted | UsageError]) -> None:
            entries = [
                it.record(it.request, answer)
                for it, answer in zip(batch, made, strict=True)
                if isinstance(answer, Accepted) and not answer.repeated
            ]
            if entries:
                self._log.append_within(connection, entries)

        made: Sequence[Accepted | Exception] = [it.answer for it in batch]
        try:
            made = self._book.submit_each([(it.request, it.epoch) for it in batch], then=record)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            made = [error] * len(batch)
        finally:
            together = _Batch()
            for it, answer in zip(batch, made, strict=True):
                it.batch, it.answer = together, answer
                it.woken.set()


KIND: Final = "rights"
_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH}}}", re.ASCII)
_UNKNOWN: Final = "there is no such publisher, service or request for this user"
_CHOICES: Final = frozenset({"opt-in", "opt-out"})
_ADDRESSES: Final = {"email": is_email, "mobile": is_mobile}


class Submission(NamedTuple):
    """What a publisher says."""

    publisher: str
    key: str
    """Names the request for good: to repeat it is to say the same key again."""
    control: str
    action: str
    subject: str
    categories: tuple[str, ...] = ()


LINK_SECONDS: Final = 900
LONGEST_LINK: Final = 86_400
_LINK: Final = "choice link"


class ChoiceLink(NamedTuple):
    """Lets one person see and change their choices at one publisher, until its end."""

    user: str
    """Who made it, for the publisher."""
    publisher: str
    subject: str
    end: datetime


class PrivacyBroker:
    """Takes requests and answers under the definitions of one epoch."""

    def __init__(
        self,
        book: RequestBook,
        log: AuditLog,
        people: Pseudonyms,
        definitions: DefinitionSet,
        epoch: int,
        *,
        intake: Intake | None = None,
    ) -> None:
        """Without `intake`, requests share commits with those of this broker alone."""
        self.book = book
        self._intake = intake or Intake(book, log)
        self._log = log
        self._people = people
        self.definitions = definitions
        self.epoch = epoch

    def submit(self, user: str, submissions: Sequence[Submission]) -> list[Accepted]:
        """Accept what a publisher hands in, all or none of it."""
        wanted = [self._resolve(user, submission) for submission in submissions]

        def entry(request: NewRequest, answer: Accepted) -> Entry:
            return self._entry(
                "accepted", user, request.subject,
                request=answer.id, control=request.control, operation=request.action,
            )  # fmt: skip

        if len(wanted) == 1:
            return [self._intake.submit(wanted[0], self.epoch, entry)]

        def record(connection: Connection, made: Sequence[Accepted]) -> None:
            entries = [
                entry(request, answer)
                for request, answer in zip(wanted, made, strict=True)
                if not answer.repeated
            ]
            if entries:
                self._log.append_within(connection, entries)

        return self.book.submit(wanted, self.epoch, then=record)

    def set_contact(
        self, user: str, publisher: str, subject: str, contact: Mapping[str, str]
    ) -> None:
        """Keep where a person can be told of completed requests; an empty one is forgotten."""
        self.require_publisher(user, publisher)
        self._check_subject(subject)
        for name, address in contact.items():
            if name not in _ADDRESSES or not _ADDRESSES[name](address):
                # Not quoted: it is somebody's.
                raise UsageError(
                    "an address of a contact is not of the plain form",
                    fix="give an email such as ann@example.com, a mobile such as +4791234567",
                )
        self.book.profiles.set_contact(publisher, subject, contact)
        self._log.append([self._entry("contact", user, subject, count=len(contact))])

    def make_link(
        self, user: str, publisher: str, subject: str, seconds: int
    ) -> tuple[str, datetime]:
        """Return what lets one person see and change their choices for a while, and until when.

        It is sealed: it shows to nobody whom it is about, and cannot be made or changed by others.
        """
        self.require_publisher(user, publisher)
        self._check_subject(subject)
        if not 1 <= seconds <= LONGEST_LINK:
            raise UsageError(
                f"a link is good for 1 to {LONGEST_LINK} seconds", fix="make it shorter-lived"
            )
        end = utc_now().replace(microsecond=0) + timedelta(seconds=seconds)
        said = json.dumps([user, publisher, subject, int(end.timestamp())])
        sealed = self.book.sealer.seal(said, _LINK)
        self._log.append([self._entry("linked", user, subject)])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("="), end

    def open_link(self, link: str) -> ChoiceLink:
        """Return for whom a link is; refuse one that was not made here, or is too old.

        Who made it must still act for the publisher: what is done by it is done in their name.
        """
        refused = DeniedError("this link is no good, or too old", fix="go back and open it anew")
        try:
            sealed = base64.b64decode(f"{link}{'=' * (-len(link) % 4)}", b"-_", validate=True)
            user, publisher, subject, end = json.loads(self.book.sealer.open(sealed, _LINK))
        except (ValueError, SealBrokenError):
            raise refused from None
        found = self.definitions.get(ControlPublisher, publisher)
        if end <= utc_now().timestamp() or found is None:
            raise refused
        if not self.is_among(user, found.subjects):
            raise refused
        return ChoiceLink(user, publisher, subject, datetime.fromtimestamp(end, UTC))

    def acknowledge(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service knows of a request."""
        return self._answer(user, request, subscriber, ProgressEvent.ACKNOWLEDGED)

    def complete(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service has done its part."""
        made = self._entry("completed", user, None, request=request)

        def record(connection: Connection) -> None:
            self._log.append_within(connection, [made])

        return self._answer(user, request, subscriber, ProgressEvent.COMPLETED, then=record)

    def find_own(self, user: str, request: str, subject: str) -> Any:
        """Return a request that a publisher handed in for a person it names."""
        found = self.book.show(request)
        if found is None or not self.book.is_about(request, subject):
            raise self.deny(user)
        self.require_publisher(user, found[0].publisher)
        return found[0]

    def note_handed_over(self, user: str, request: str, subject: str) -> None:
        """Record that the package of a person was handed over to a front end."""
        self._log.append([self._entry("handed_over", user, subject, request=request)])

    def redrive(self, user: str, request: str | None = None) -> int:
        """Let services be told again that failed a request, or any, and dead notices be sent.

        Return how many.
        """
        again = self.book.redrive(self.book.lost(request)) + self.book.outbox.redrive(request)
        self._log.append([self._entry("redriven", user, None, count=again)])
        return again

    def require_administration(self, user: str) -> None:
        """Refuse whoever has no right to look at requests of others."""
        if find_right(self.definitions, user, lambda it: it.administer) is None:
            raise self.deny(user, f"{quote(user)} has no right to administer privacy requests")

    def require_publisher(self, user: str, publisher: str) -> ControlPublisher:
        """Return a publisher; refuse whoever does not act for it."""
        found = self.definitions.get(ControlPublisher, publisher)
        if found is None or not self.is_among(user, found.subjects):
            raise self.deny(user)
        return found

    def require_subscriber(self, user: str, subscriber: str) -> ControlSubscriber:
        """Return a service; refuse whoever does not act for it."""
        found = self.definitions.get(ControlSubscriber, subscriber)
        if found is None or not self.is_among(user, found.subjects):
            raise self.deny(user)
        return found

    def _answer(
        self,
        user: str,
        request: str,
        subscriber: str,
        event: ProgressEvent,
        then: Callable[[Connection], None] | None = None,
    ) -> ProgressStatus:
        self.require_subscriber(user, subscriber)
        after = self.book.note(request, subscriber, event, then=then)
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
        self._check_subject(given.subject)
        if given.action != Choice.OPT_IN and not self.has_effect(control, given.categories):
            raise UsageError(
                f"nobody would honour {quote(given.action)} of {quote(control.name)}",
                fix="ask the data officer for a control-subscriber of it, or for its purposes",
            )
        return NewRequest(
            given.publisher,
            given.key,
            control.name,
            given.action,
            given.subject,
            tuple(sorted(set(given.categories))),
            self._list_subscribers(control, set(given.categories)),
            tuple(self._list_purposes(control, given.categories)) if control.stateful else (),
            publisher.notify,
        )

    def has_effect(self, control: Control, categories: Sequence[str] = ()) -> bool:
        """Say whether something is prohibited by it, or some service told of it."""
        prohibits = control.stateful and bool(self._list_purposes(control, categories))
        return prohibits or bool(self._list_subscribers(control, set(categories)))

    @staticmethod
    def _check_subject(subject: str) -> None:
        if not subject or len(subject) > SUBJECT_LIMIT:
            # Not quoted: it names somebody.
            raise UsageError(
                "the request does not say whom it is about", fix="name the person as records do"
            )

    def _list_subscribers(self, control: Control, categories: set[str]) -> dict[str, timedelta]:
        """Return the services of the control, and of one of its categories, with their time."""
        return {
            name: timedelta(milliseconds=it.time_to_honor or control.time_to_honor)
            for name, it in sorted(self.definitions.of(ControlSubscriber).items())
            if it.control == control.name
            and (not categories or not it.categories or categories & set(it.categories))
        }

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
