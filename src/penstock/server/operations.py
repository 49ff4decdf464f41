"""The operations of the server, whatever protocol a caller speaks.

    call ─▶ limits of the user ─▶ a thread: broker of the current epoch ─▶ answer

Rules that hold here:
- Whoever calls is known by now, and what may be asked of the broker is the broker's to decide.
- Store and audit log are asked in threads, so that the loop goes on. The caller's going away ends
  no transaction.
- The answer to a choice comes after its commit, with the state that is persisted then.
- The broker has the definitions of the change feed. Where these may be stale nothing is done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from penstock.definitions import DefinitionSet
from penstock.errors import DeniedError, PenstockError, quote
from penstock.model.document import Document, Key
from penstock.model.kinds import Control, ControlPublisher, EventType, User
from penstock.rights.accountability import make_receipt
from penstock.rights.broker import Intake, PrivacyBroker, Submission
from penstock.rights.inquiries import (
    Inquiries,
    RequestReport,
    ServiceProgress,
    StateReport,
    expected_completion,
)
from penstock.server.callers import CallLimits, describe
from penstock.store.access_tokens import TokenBook
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.follower import Follower
from penstock.store.rights.requests import Accepted, RequestBook
from penstock.store.rights.tables import ProgressStatus, RequestStatus
from penstock.telemetry import counter, histogram

OPERATIONS: Final = (
    "submit", "batch", "signal", "status", "list", "acknowledge", "complete", "states",
    "publisher", "find", "contact", "link", "receipt", "definition", "define", "undefine",
    "event_types",
)  # fmt: skip
CALLS: Final = counter(
    "penstock_server_calls",
    "Calls of known users, by operation and outcome.",
    operation=OPERATIONS,
    outcome=("done", "unknown", "invalid", "key-reused", "too-many", "stale", "unavailable"),
)
SECONDS: Final = histogram(
    "penstock_server_seconds", "How long operations took, waiting included.", operation=OPERATIONS
)

T = TypeVar("T")
FOLLOW_SECONDS: Final = 10.0
"""How long a changed definition is waited for until this server follows it."""


class DefinitionChange(NamedTuple):
    """What became of a definition."""

    key: Key
    epoch: int
    changed: bool


class Submitted(NamedTuple):
    """What became of a submission."""

    accepted: Accepted
    stateful: bool
    states: list[StateReport]


class Desk(NamedTuple):
    """What a call is answered with: the broker of one epoch, and what may be looked at."""

    broker: PrivacyBroker
    inquiries: Inquiries


class Brokerage:
    """The broker of the definitions that are current."""

    def __init__(
        self,
        follower: Follower,
        definitions: CheckedDefinitions,
        book: RequestBook,
        log: AuditLog,
        people: Pseudonyms,
    ) -> None:
        self._follower = follower
        self._definitions = definitions
        self._book = book
        self._log = log
        self._people = people
        # One for all epochs: those who hand in at the same time share a commit.
        self._intake = Intake(book, log)
        self._lock = threading.Lock()
        self._held: tuple[str, Desk] | None = None

    def receipt(self, desk: Desk, user: str, request: str, subject: str) -> dict[str, Any]:
        """Return the signed receipt of a choice, under the definitions of its epoch."""
        row = desk.broker.find_own(user, request, subject)
        then = desk.broker.definitions
        if row.epoch != desk.broker.epoch:
            snapshot = self._definitions.definitions.snapshot_at(row.epoch)
            then = DefinitionSet.build(snapshot.documents.values())
        return make_receipt(row, subject, then, self._log.signer)

    def definition(self, desk: Desk, user: str, key: Key) -> Document:
        """Return a definition as it is stored, for those who may administer."""
        desk.broker.require_administration(user)
        found = self._definitions.definitions.snapshot().documents.get(key)
        if found is None:
            raise DeniedError(f"there is no {key.kind} {quote(key.name)}", fix="check its name")
        return found

    def list_event_types(self, desk: Desk) -> list[Document]:
        """Return the signed event types that are registered: they are meant for others."""
        del desk
        held = self._definitions.definitions.snapshot().documents
        return [held[key] for key in sorted(held) if key.kind == EventType.kind]

    def define(
        self, desk: Desk, user: str, key: Key, document: Document | None
    ) -> DefinitionChange:
        """Put or delete a definition; it is followed here when this returns."""
        if document is None:
            self.definition(desk, user, key)
            made = self._definitions.delete([key], actor=user)
        else:
            desk.broker.require_administration(user)
            made = self._definitions.apply([document], actor=user)
        self._follower.wait_for(made.epoch, FOLLOW_SECONDS)
        return DefinitionChange(key, made.epoch, changed=not made.is_empty)

    def open(self) -> Desk:
        """Return the desk of now; raise `StaleError` where the definitions may be others."""
        snapshot = self._follower.current()
        with self._lock:
            if self._held is None or self._held[0] != snapshot.mark:
                known = self._definitions.meaning(snapshot)
                broker = PrivacyBroker(
                    self._book,
                    self._log,
                    self._people,
                    known,
                    snapshot.epoch,
                    intake=self._intake,
                )
                self._held = (snapshot.mark, Desk(broker, Inquiries(broker)))
            return self._held[1]


class PrivacyOperations:
    """What callers can ask for."""

    def __init__(
        self,
        brokerage: Brokerage,
        tokens: TokenBook,
        limits: CallLimits,
        threads: int,
        *,
        defined_users: bool = False,
        console: str = "",
    ) -> None:
        """With `defined_users`, who has no `user` definition is nobody, as at the gateway.

        `console` is where browsers reach the console.
        """
        self._defined_users = defined_users
        self._console = console
        self._brokerage = brokerage
        self._tokens = tokens
        self._limits = limits
        self._threads = ThreadPoolExecutor(threads, "penstock-server")

    def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def find_user(self, token: str) -> str | None:
        """Ask the store whom a token proves."""
        return await self._in_thread(lambda: self._tokens.find_user(token))

    # --- publishers ---

    async def submit(
        self, user: str, submissions: Sequence[Submission], *, batch: bool = False
    ) -> list[Submitted]:
        """Hand requests in, all or none of them."""

        def work(desk: Desk) -> list[Submitted]:
            made = desk.broker.submit(user, submissions)
            return _answers(desk, submissions, made)

        operation = "batch" if batch else "submit"
        return await self._run(operation, user, work, cost=max(1, len(submissions)))

    async def signal(self, user: str, publisher: str, subject: str, key: str) -> list[Submitted]:
        """Take the opt-out signal of a browser in."""

        def work(desk: Desk) -> list[Submitted]:
            wanted, made = desk.inquiries.signal(user, publisher, subject, key)
            return _answers(desk, wanted, made)

        return await self._run("signal", user, work)

    async def status(self, user: str, request: str) -> tuple[RequestReport, list[ServiceProgress]]:
        """Say how far a request is."""
        return await self._run("status", user, lambda desk: desk.inquiries.status(user, request))

    async def find(self, user: str, publisher: str, key: str) -> tuple[RequestReport, datetime]:
        """Return the request that was handed in under a key, and by when it is to be done."""

        def work(desk: Desk) -> tuple[RequestReport, datetime]:
            found = desk.inquiries.find(user, publisher, key)
            report, _ = desk.inquiries.status(user, found)
            return report, expected_completion(desk.broker, report)

        return await self._run("find", user, work)

    async def list_own(
        self,
        user: str,
        publisher: str,
        status: RequestStatus | None,
        limit: int,
        after: str | None,
    ) -> list[RequestReport]:
        """Return requests of a publisher, newest first."""
        return await self._run(
            "list",
            user,
            lambda desk: desk.inquiries.list_own(
                user, publisher, status=status, limit=limit, after=after
            ),
        )

    async def publisher(self, user: str, publisher: str) -> tuple[ControlPublisher, list[Control]]:
        """Return the definition of a publisher, and the controls that it offers."""

        def work(desk: Desk) -> tuple[ControlPublisher, list[Control]]:
            found = desk.broker.require_publisher(user, publisher)
            known = desk.broker.definitions.of(Control)
            return found, [known[name] for name in found.controls if name in known]

        return await self._run("publisher", user, work)

    async def set_contact(
        self, user: str, publisher: str, subject: str, contact: Mapping[str, str]
    ) -> None:
        """Keep where a person can be told; an empty one is forgotten."""
        await self._run(
            "contact",
            user,
            lambda desk: desk.broker.set_contact(user, publisher, subject, contact),
        )

    async def link(
        self, user: str, publisher: str, subject: str, seconds: int
    ) -> tuple[str, datetime]:
        """Return where one person sees and changes their choices for a while, and until when."""
        link, end = await self._run(
            "link", user, lambda desk: desk.broker.make_link(user, publisher, subject, seconds)
        )
        return f"{self._console}/choices?link={link}", end

    async def receipt(self, user: str, request: str, subject: str) -> dict[str, Any]:
        """Return the signed receipt of a choice, for the person to keep."""
        return await self._run(
            "receipt",
            user,
            lambda desk: self._brokerage.receipt(desk, user, request, subject),
        )

    # --- services ---

    async def acknowledge(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service knows of a request."""
        return await self._run(
            "acknowledge",
            user,
            lambda desk: desk.broker.acknowledge(user, request, subscriber),
        )

    async def complete(self, user: str, request: str, subscriber: str) -> ProgressStatus:
        """Note that a service has done its part."""
        return await self._run(
            "complete", user, lambda desk: desk.broker.complete(user, request, subscriber)
        )

    async def states(
        self,
        user: str,
        subject: str,
        *,
        publisher: str | None = None,
        subscriber: str | None = None,
    ) -> list[StateReport]:
        """Return what holds for a person, for a publisher or for a service."""

        def work(desk: Desk) -> list[StateReport]:
            if subscriber is not None:
                return desk.inquiries.states_for_subscriber(user, subscriber, subject)
            return desk.inquiries.states_for_publisher(user, publisher or "", subject)

        return await self._run("states", user, work)

    # --- definitions ---

    async def definition(self, user: str, key: Key) -> Document:
        """Return a control, publisher or subscriber as it is defined."""
        return await self._run(
            "definition", user, lambda desk: self._brokerage.definition(desk, user, key)
        )

    async def event_types(self, user: str) -> list[Document]:
        """Return the signed event types."""
        return await self._run("event_types", user, self._brokerage.list_event_types)

    async def define(self, user: str, document: Document) -> DefinitionChange:
        """Register or change a control, publisher or subscriber."""
        return await self._run(
            "define",
            user,
            lambda desk: self._brokerage.define(desk, user, document.key, document),
        )

    async def undefine(self, user: str, key: Key) -> DefinitionChange:
        """Delete a control, publisher or subscriber."""
        return await self._run(
            "undefine", user, lambda desk: self._brokerage.define(desk, user, key, None)
        )

    async def _run(
        self, operation: str, user: str, work: Callable[[Desk], T], *, cost: float = 1.0
    ) -> T:
        began = time.monotonic()
        try:
            with self._limits.admit(user, cost):
                made = await self._in_thread(lambda: work(self._open_for(user)))
        except PenstockError as error:
            CALLS[operation, describe(error).code].inc()
            raise
        finally:
            SECONDS[operation].observe(time.monotonic() - began)
        CALLS[operation, "done"].inc()
        return made

    def _open_for(self, user: str) -> Desk:
        desk = self._brokerage.open()
        if self._defined_users and desk.broker.definitions.get(User, user) is None:
            raise desk.broker.deny(user)
        return desk

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _answers(
    desk: Desk, submissions: Sequence[Submission], made: Sequence[Accepted]
) -> list[Submitted]:
    """Read what is persisted now: a later choice may have come meanwhile, and is what holds."""
    answers = []
    for submission, accepted in zip(submissions, made, strict=True):
        control = desk.broker.definitions.get(Control, submission.control)
        stateful = control is not None and control.stateful
        states = desk.inquiries.state_of(submission) if stateful else []
        answers.append(Submitted(accepted, stateful, states))
    return answers
