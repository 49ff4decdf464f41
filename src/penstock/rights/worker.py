"""Workers: tell services what is due, follow up what is overdue, send what is in the outbox.

    due row ──▶ send ──▶ told ──▶ overdue at the deadline? ──▶ told again, with a new deadline
                  │                                        └─▶ none left: FAILED, alert
                  └ failed ──▶ again after a while, longer each time ──▶ SENDFAILED, alert

`run_worker` runs one until it is stopped, with metrics and health: `penstock requests work`.

Rules that hold here:
- Any number of workers on any number of hosts may run: a lease keeps a row for one of them. Killed
  in the middle, its rows are due again when their lease ends; a service may then be told twice,
  under the same idempotency key.
- No service gets more than a share of the threads: one that is slow or down holds up no other.
- A service of Penstock's own (`BUILT_IN`) works in the place of a call, and keeps its lease while
  it does; nobody else can say that it is done.
- A service that is gone from the definitions cannot be told: its rows fail, with the reason.
- Waits double up to a longest, and are drawn between half and the whole of that: services that
  come back are not told by all at once.
- An alert is in the outbox in the same transaction as the failure that it tells of.
- Ready means: the store can be read, and a round ended. A service out of reach does not make a
  worker unready. A store that fails for a while is tried again; what was accepted is in it.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Protocol

from penstock.clock import utc_now
from penstock.config import Config
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.model.kinds import Control, ControlSubscriber
from penstock.model.kinds.controls import BUILT_IN
from penstock.rights.dispatch.message import (
    NOT_CONFIGURED,
    BuiltIn,
    Dispatched,
    LeaseLostError,
    Notification,
    Outcome,
)
from penstock.rights.notices import NoticeSender, NoticeWorker
from penstock.store.rights.compliance import OverdueRule
from penstock.store.rights.outbox import Notice
from penstock.store.rights.requests import CHECK, SEND, RequestBook, Work
from penstock.store.rights.tables import (
    LOST,
    ProgressEvent,
    ProgressStatus,
    SealBrokenError,
)
from penstock.telemetry import Endpoint, Health, counter, gauge, get_logger

LEASE_SECONDS: Final = 60.0
THREADS: Final = 16
SHARE: Final = 4
"""How many calls to one service run at once."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_DOUBLINGS: Final = 40

DISPATCHES: Final = counter(
    "penstock_rights_dispatches",
    "Attempts to tell a service of a privacy request.",
    outcome=("sent", "done", "failed"),
)
NOTICES: Final = counter(
    "penstock_rights_notices",
    "Attempts to send an alert or a note on privacy requests.",
    kind=("alert", "done"),
    outcome=("sent", "failed"),
)
OVERDUE: Final = counter(
    "penstock_rights_overdue", "Privacy requests that a service did not honour by a deadline."
).plain
FAILED: Final = counter(
    "penstock_rights_failed", "Privacy requests that a service failed, with no retries left."
).plain

_log = get_logger("rights")


def lease_seconds(timeout: float) -> float:
    """Return for how long a row is leased: a call and what belongs to it are over long before."""
    return max(LEASE_SECONDS, 3 * timeout)


class Dispatcher(Protocol):
    """Tells services."""

    def send(self, subscriber: ControlSubscriber, notification: Notification) -> Dispatched:
        """Tell a service of a request."""


class RightsWorker:
    """Works on what is due."""

    def __init__(
        self,
        book: RequestBook,
        definitions: Callable[[], DefinitionSet],
        dispatcher: Dispatcher,
        sender: NoticeSender,
        *,
        clock: Callable[[], datetime] = utc_now,
        draw: Callable[[], float] = random.random,
        lease: float = LEASE_SECONDS,
        built_in: Mapping[str, BuiltIn] = MappingProxyType({}),
    ) -> None:
        """Take `built_in`: services of our own, by their places."""
        self.name = uuid.uuid4().hex
        self._book = book
        self._definitions = definitions
        self._dispatcher = dispatcher
        self._built_in = built_in
        self._sender = sender
        self._clock = clock
        self._draw = draw
        self._lease = lease
        self._notices = NoticeWorker(
            book.outbox, definitions, sender, name=self.name, lease=lease, clock=clock, draw=draw
        )

    def run_once(self) -> int:
        """Work until nothing is due any more; return how many sends and failures that were."""
        done = self.sweep()
        pending: dict[Future[None], str] = {}
        with ThreadPoolExecutor(THREADS) as pool:
            while True:
                for work in self._take(pending):
                    pending[pool.submit(self._handle, work)] = work.subscriber
                room = THREADS - len(pending)
                for notice in self._notices.take(room) if room else ():
                    pending[pool.submit(self._send_notice, notice)] = ""
                if not pending:
                    return done
                ended, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    del pending[future]
                    future.result()
                    done += 1

    def sweep(self) -> int:
        """Follow up what is overdue; return how many services failed a request by that."""
        definitions = self._definitions()

        def rule(name: str) -> OverdueRule:
            found = definitions.get(ControlSubscriber, name)
            retries = 0 if found is None else found.deadline_retries
            return OverdueRule(retries, self._sender.alert_channels(found))

        swept = self._book.compliance.sweep(rule)
        OVERDUE.inc(swept.again + len(swept.failed))
        FAILED.inc(len(swept.failed))
        for name, count in Counter(swept.failed).items():
            _log.warning("a service did not honour requests", component=name, count=count)
        return len(swept.failed)

    def _take(self, pending: dict[Future[None], str]) -> list[Work]:
        room = THREADS - len(pending)
        if not room:
            return []
        busy = Counter(pending.values())
        full = [name for name, count in busy.items() if name and count >= SHARE]
        return self._book.lease(self.name, room, self._lease, share=SHARE, without=full)

    def _send_notice(self, notice: Notice) -> None:
        made = self._notices.handle(notice)
        outcome = "failed" if made.outcome is Outcome.FAILED else "sent"
        NOTICES[notice.kind.value, outcome].inc()
        if made.outcome is Outcome.FAILED:
            _log.warning("a notice could not be sent", kind=notice.kind.value, code=made.trouble)

    def _handle(self, work: Work) -> None:
        definitions = self._definitions()
        subscriber = definitions.get(ControlSubscriber, work.subscriber)
        control = definitions.get(Control, work.control)
        if subscriber is None or control is None:
            self._fail(work, subscriber, "not-defined")
        else:
            self._send(work, subscriber, control)

    def _send(self, work: Work, subscriber: ControlSubscriber, control: Control) -> None:
        try:
            subject = self._book.subject_of(work.request)
        except SealBrokenError:
            # Somebody changed the row: this request fails, and no other waits for it.
            self._fail(work, subscriber, "sealed")
            return
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
        if subscriber.delivery == BUILT_IN:
            made = self._run_built_in(work, subscriber.uri, notification)
        else:
            made = self._dispatcher.send(subscriber, notification)
        DISPATCHES[made.outcome.value].inc()
        if made.again is not None:
            next_at = self._clock() + timedelta(seconds=made.again)
            self._note(work, None, action=SEND, next_at=next_at, trouble=made.trouble)
        elif made.outcome is Outcome.DONE:
            # In one step: were the row free in between, somebody would tell the service again.
            self._note(work, ProgressEvent.COMPLETED)
        elif made.outcome is Outcome.SENT:
            span = subscriber.time_to_honor or control.time_to_honor
            deadline = self._clock() + span * _MILLISECOND
            self._note(
                work, ProgressEvent.SENT, action=CHECK, next_at=deadline, deadline=deadline,
                attempts=0, trouble="",
            )  # fmt: skip
        elif work.attempts >= subscriber.send_retries:
            self._fail(work, subscriber, made.trouble)
        else:
            self._note(
                work, None, action=SEND, next_at=self._clock() + self._wait(work, subscriber),
                attempts=work.attempts + 1, trouble=made.trouble,
            )  # fmt: skip

    def _run_built_in(self, work: Work, place: str, notification: Notification) -> Dispatched:
        service = self._built_in.get(place)
        if service is None:
            return NOT_CONFIGURED

        renewed = time.monotonic()

        def keep() -> None:
            nonlocal renewed
            if time.monotonic() - renewed < self._lease / 4:
                return
            if not self._book.renew(work.request, work.subscriber, self.name, self._lease):
                raise LeaseLostError("another worker has the request now")
            renewed = time.monotonic()

        return service.run(notification, self._definitions(), keep)

    def _fail(self, work: Work, subscriber: ControlSubscriber | None, code: str) -> None:
        channels = self._sender.alert_channels(subscriber)
        after = self._note(work, ProgressEvent.GAVE_UP, alert=channels, trouble=code)
        if after in LOST:
            FAILED.inc()
            _log.warning("a service did not honour a request", component=work.subscriber, code=code)

    def _note(
        self, work: Work, event: ProgressEvent | None, alert: tuple[str, ...] = (), **plan: Any
    ) -> ProgressStatus | None:
        return self._book.note(
            work.request, work.subscriber, event, holder=self.name, alert=alert, **plan
        )

    def _wait(self, work: Work, subscriber: ControlSubscriber) -> timedelta:
        doubled = subscriber.retry_gap << min(work.attempts, _DOUBLINGS)
        longest = min(doubled, subscriber.longest_gap)
        return (0.5 + self._draw() / 2) * longest * _MILLISECOND


OPEN: Final = gauge(
    "penstock_rights_open", "Services that still have to do their part of a privacy request."
).plain
DEAD: Final = gauge(
    "penstock_rights_dead_letters", "Services that failed a privacy request, to be redriven."
).plain
LONGEST_WAIT: Final = 30.0
COUNT_SECONDS: Final = 10.0


def run_worker(
    config: Config,
    book: RequestBook,
    worker: RightsWorker,
    stop: threading.Event,
    *,
    once: bool = False,
) -> None:
    """Work on what is due, and answer probes, until `stop` is set; `once`: until nothing is."""
    if once:
        while worker.run_once():
            pass
        return
    ended = threading.Event()
    with _endpoint(config, make_health(book, ended)):
        wait, counted = config.rights.poll, 0.0
        while not stop.is_set():
            try:
                worker.run_once()
                if time.monotonic() - counted > COUNT_SECONDS:
                    counted = time.monotonic()
                    still, dead = book.compliance.totals()
                    OPEN.set(still)
                    DEAD.set(dead)
                wait = config.rights.poll
                ended.set()
            except UnavailableError:
                wait = min(2 * wait, LONGEST_WAIT)
                _log.warning("the store is not available", delay_s=wait)
            stop.wait(wait)


def make_health(book: RequestBook, ended: threading.Event) -> Health:
    """Make the checks of a worker."""
    health = Health()

    def check_store() -> str | None:
        book.show("")
        return None

    def check_round() -> str | None:
        return None if ended.is_set() else "no round has ended yet"

    health.register("store", check_store)
    health.register("round", check_round)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.rights.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
