"""What publishers and services may look at: their own requests, and the states of their controls.

Rules that hold here:
- The broker decides who acts for whom. Requests of others and such that do not exist get the same
  answer, after the same work.
- What is shown says nothing about whom a request concerns; who asks for states names the person.
- A state is the latest that is persisted: services and front ends keep no other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

from penstock.errors import UsageError, quote
from penstock.model.kinds import Control, ControlPublisher
from penstock.rights.broker import PrivacyBroker, Submission
from penstock.store.consent import WHOLE
from penstock.store.opt_outs import SUBJECT_LIMIT
from penstock.store.rights.profiles import ControlState
from penstock.store.rights.requests import Accepted
from penstock.store.rights.tables import ProgressStatus, RequestStatus

MOST_LISTED: Final = 1_000


class ServiceProgress(NamedTuple):
    """How far one service is with a request."""

    subscriber: str
    status: ProgressStatus
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request as its publisher may see it."""

    id: str
    publisher: str
    control: str
    action: str
    categories: tuple[str, ...]
    status: RequestStatus
    at: datetime
    finished: datetime | None
    services: int
    done: int


class StateReport(NamedTuple):
    """What holds for a person: of a control, or of one of its categories (else it is empty)."""

    control: str
    category: str
    state: str
    version: int
    """Grows with every choice; 0 where the person has not chosen and the default holds."""


class Inquiries:
    """Answers questions under the definitions of one epoch."""

    def __init__(self, broker: PrivacyBroker) -> None:
        self._broker = broker

    def status(self, user: str, request: str) -> tuple[RequestReport, list[ServiceProgress]]:
        """Return how far a request of one's own is."""
        broker = self._broker
        found = broker.book.show(request)
        publisher = found and broker.definitions.get(ControlPublisher, found[0].publisher)
        own = broker.is_among(user, publisher.subjects if publisher else ("user:",))
        if found is None or not own:
            raise broker.deny(user)
        row, progress = found
        services = [
            ServiceProgress(it.subscriber, ProgressStatus(it.status), it.deadline)
            for it in progress
        ]
        done = sum(it.status is ProgressStatus.COMPLETED for it in services)
        return _report(row, len(services), done), services

    def find(self, user: str, publisher: str, key: str) -> str:
        """Return the request of one's own that was handed in under a key."""
        self._broker.require_publisher(user, publisher)
        found = self._broker.book.find_by_key(publisher, key)
        if found is None:
            raise self._broker.deny(user)
        return found

    def list_own(
        self,
        user: str,
        publisher: str,
        *,
        status: RequestStatus | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[RequestReport]:
        """Return the requests of a publisher, newest first; `after` names the last one seen."""
        self._broker.require_publisher(user, publisher)
        found = self._broker.book.newest(
            status=status, limit=min(limit, MOST_LISTED), publisher=publisher, after=after
        )
        return [_report(row, services, done) for row, services, done in found]

    def states_for_publisher(
        self, user: str, publisher: str, subject: str, control: str | None = None
    ) -> list[StateReport]:
        """Return what holds for a person, of the controls that a publisher offers."""
        offered = self._broker.require_publisher(user, publisher).controls
        if control is not None and control not in offered:
            raise UsageError(
                f"{quote(publisher)} offers no control {quote(control)}",
                fix=f"it offers {', '.join(offered)}",
            )
        return self._states(subject, offered if control is None else (control,))

    def states_for_subscriber(self, user: str, subscriber: str, subject: str) -> list[StateReport]:
        """Return what holds for a person, of the control that a service acts on."""
        service = self._broker.require_subscriber(user, subscriber)
        found = self._states(subject, (service.control,))
        if not service.categories:
            return found
        return [it for it in found if it.category in {WHOLE, *service.categories}]

    def state_of(self, submission: Submission) -> list[StateReport]:
        """Return what holds after a choice that was accepted; nothing for a single request."""
        return self._states(submission.subject, (submission.control,))

    def signal(
        self, user: str, publisher: str, subject: str, key: str
    ) -> tuple[list[Submission], list[Accepted]]:
        """Take a browser's signal in: opt a person out of the controls that heed it.

        Who is out already stays so, and nothing is handed in again: browsers signal with every
        page.
        """
        offered = self._broker.require_publisher(user, publisher).controls
        wanted = []
        for name in offered:
            control = self._broker.definitions.get(Control, name)
            if control is None or not control.global_privacy_control:
                continue
            if not self._broker.has_effect(control):
                continue  # it must not keep the others from being opted out of
            states = self._states(subject, (name,))
            if any(it.state != "opt-out" or (not it.version and not it.category) for it in states):
                mark = sha256(name.encode()).hexdigest()[:16]
                wanted.append(Submission(publisher, f"{key}:gpc:{mark}", name, "opt-out", subject))
        return wanted, self._broker.submit(user, wanted) if wanted else []

    def _states(self, subject: str, controls: tuple[str, ...]) -> list[StateReport]:
        if not subject or len(subject) > SUBJECT_LIMIT:
            # Not quoted: it names somebody.
            raise UsageError("it is not said whom this is about", fix="name the person")
        wanted = [
            found
            for name in controls
            if (found := self._broker.definitions.get(Control, name)) is not None and found.stateful
        ]
        if not wanted:
            return []
        chosen: dict[str, dict[str, ControlState]] = {}
        for it in self._broker.book.profiles.states(subject):
            chosen.setdefault(it.control, {})[it.category] = it
        return [
            report
            for control in wanted
            for report in _effective(control, chosen.get(control.name, {}))
        ]


def _effective(control: Control, chosen: dict[str, ControlState]) -> list[StateReport]:
    """Return what holds of a control and of each of its categories."""
    version = max((it.version for it in chosen.values()), default=0)
    whole = chosen[WHOLE].state if WHOLE in chosen else control.default
    found = [StateReport(control.name, WHOLE, whole, version)]
    for category in control.categories:
        state = chosen[category].state if category in chosen else whole
        found.append(StateReport(control.name, category, state, version))
    return found


def expected_completion(broker: PrivacyBroker, report: RequestReport) -> datetime:
    """Return by when the law wants a request to be done."""
    control = broker.definitions.get(Control, report.control)
    span = control.time_to_honor if control is not None else 0
    return report.at + timedelta(milliseconds=span)


def _report(row: Any, services: int, done: int) -> RequestReport:
    return RequestReport(
        row.id,
        row.publisher,
        row.control,
        row.action,
        tuple(json.loads(row.categories)),
        RequestStatus(row.status),
        row.at,
        row.finished,
        services,
        done,
    )
