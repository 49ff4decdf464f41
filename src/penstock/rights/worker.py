"""Workers: tell services what is due, and follow up what is overdue.

    due row ─┬─ send ──▶ told ──▶ check at the deadline
             │            └ failed ──▶ again after a while, longer each time ──▶ gave up: alert
             └─ check ──▶ overdue ──▶ told again, with a new deadline ──▶ expired: alert

Rules that hold here:
- Any number of workers on any number of hosts may run: a lease keeps a row for one of them. Killed
  in the middle, its rows are due again when their lease ends; a service may then be told twice,
  under the same idempotency key.
- A service that is gone from the definitions cannot be told: its rows fail, with the reason.
- Waits double up to a longest, and are drawn between half and the whole of that: services that
  come back are not told by all at once.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final, Protocol

from penstock.clock import utc_now
from penstock.definitions import DefinitionSet
from penstock.model.kinds import Control, ControlSubscriber
from penstock.rights.dispatch.message import Dispatched, Notification, Outcome
from penstock.store.rights.progress import ProgressEvent, ProgressStatus
from penstock.store.rights.requests import CHECK, SEND, RequestBook, Work

LEASE_SECONDS: Final = 60.0
BATCH: Final = 100
THREADS: Final = 16
_MILLISECOND: Final = timedelta(milliseconds=1)
_DOUBLINGS: Final = 40


class Dispatcher(Protocol):
    """Tells a service of a request."""

    def send(self, uri: str, notification: Notification, *, synchronous: bool) -> Dispatched:
        """Tell it; in the synchronous way its answer says that it is done."""


Alert = Callable[[str, str, str], None]
"""Tells somebody that a service failed: its name, the request, and a code of why."""


class RightsWorker:
    """Works on what is due."""

    def __init__(
        self,
        book: RequestBook,
        definitions: Callable[[], DefinitionSet],
        dispatcher: Dispatcher,
        alert: Alert,
        *,
        clock: Callable[[], datetime] = utc_now,
        draw: Callable[[], float] = random.random,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.name = uuid.uuid4().hex
        self._book = book
        self._definitions = definitions
        self._dispatcher = dispatcher
        self._alert = alert
        self._clock = clock
        self._draw = draw
        self._lease = lease

    def run_once(self) -> int:
        """Work on what is due now; return how many rows that was."""
        found = self._book.lease(self.name, BATCH, self._lease)
        if found:
            definitions = self._definitions()
            with ThreadPoolExecutor(min(THREADS, len(found))) as pool:
                list(pool.map(lambda work: self._handle(work, definitions), found))
        return len(found)

    def _handle(self, work: Work, definitions: DefinitionSet) -> None:
        subscriber = definitions.get(ControlSubscriber, work.subscriber)
        control = definitions.get(Control, work.control)
        if subscriber is None or control is None:
            self._fail(work, ProgressEvent.GAVE_UP, "not-defined")
        elif work.action == CHECK:
            self._follow_up(work, subscriber)
        else:
            self._send(work, subscriber, control)

    def _send(self, work: Work, subscriber: ControlSubscriber, control: Control) -> None:
        subject = self._book.subject_of(work.request)
        if subject is None:
            return  # completed meanwhile
        notification = Notification(
            work.request,
            work.subscriber,
            work.control,
            work.request_action,
            subject,
            work.categories,
            work.attempts + 1,
        )
        made = self._dispatcher.send(
            subscriber.uri, notification, synchronous=subscriber.delivery == "http-sync"
        )
        if made.outcome is Outcome.DONE:
            self._note(work, ProgressEvent.SENT)
            self._book.note(work.request, work.subscriber, ProgressEvent.COMPLETED)
        elif made.outcome is Outcome.SENT:
            span = subscriber.time_to_honor or control.time_to_honor
            deadline = self._clock() + span * _MILLISECOND
            self._note(
                work, ProgressEvent.SENT, action=CHECK, next_at=deadline, deadline=deadline,
                attempts=0, trouble="",
            )  # fmt: skip
        elif work.attempts >= subscriber.send_retries:
            self._fail(work, ProgressEvent.GAVE_UP, made.trouble)
        else:
            self._note(
                work, None, action=SEND, next_at=self._clock() + self._wait(work, subscriber),
                attempts=work.attempts + 1, trouble=made.trouble,
            )  # fmt: skip

    def _follow_up(self, work: Work, subscriber: ControlSubscriber) -> None:
        """Tell an overdue service again, or give it up."""
        if work.rounds >= subscriber.deadline_retries:
            self._fail(work, ProgressEvent.EXPIRED, "overdue")
            return
        self._note(
            work, None, action=SEND, next_at=self._clock(), attempts=0,
            rounds=work.rounds + 1, trouble="overdue",
        )  # fmt: skip

    def _fail(self, work: Work, event: ProgressEvent, code: str) -> None:
        after = self._note(work, event, trouble=code)
        if after in {ProgressStatus.SENDFAILED, ProgressStatus.FAILED}:
            self._alert(work.subscriber, work.request, code)

    def _note(
        self, work: Work, event: ProgressEvent | None, **plan: object
    ) -> ProgressStatus | None:
        return self._book.note(work.request, work.subscriber, event, holder=self.name, **plan)

    def _wait(self, work: Work, subscriber: ControlSubscriber) -> timedelta:
        doubled = subscriber.retry_gap << min(work.attempts, _DOUBLINGS)
        longest = min(doubled, subscriber.longest_gap)
        return (0.5 + self._draw() / 2) * longest * _MILLISECOND
