"""What pages work with: settings, the store, the definitions in force, and who is signed in.

Rules that hold here:
- One desk serves all visits; threads share it.
- Definitions are those of the change feed. Where they may be stale there are none (`StaleError`).
- What is changed in somebody's name is in the history and the audit log under that name.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request

from penstock.clock import utc_now
from penstock.config import Config
from penstock.console.access import (
    ConsoleRights,
    HiddenError,
    NobodyError,
    RightsCache,
    find_rights,
)
from penstock.console.figures import Figures
from penstock.console.tails import Tails
from penstock.definitions import DefinitionSet
from penstock.definitions.access import list_privileges
from penstock.definitions.authorizer import RoleContext, authorizer_of
from penstock.policy.authorizer import Authorizer
from penstock.rights.broker import PrivacyBroker
from penstock.rights.inquiries import Inquiries
from penstock.server.operations import Brokerage
from penstock.store.access_tokens import ConsoleSession, ConsoleSessions, TokenBook
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pruning import keep_pruned
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, recorder
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Change, Definitions
from penstock.store.enforcement_points import ClientRequests, RecentDecision
from penstock.store.follower import Follower
from penstock.store.rights.compliance import ComplianceBook
from penstock.store.rights.registrations import RegistrationBook
from penstock.store.rights.requests import RequestBook
from penstock.store.rights.tables import Sealer
from penstock.trust.keys import open_key

FOLLOW_SECONDS: Final = 10.0
_DECISION_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
KIND: Final = "console"
VISIT: Final = "visit"
Answer = TypeVar("Answer")


def _hold_always(user: str, proof: str) -> bool:
    del user, proof
    return True


@dataclass(slots=True)
class Desk:
    """All that a console has."""

    config: Config
    database: Database
    log: AuditLog
    people: Pseudonyms
    follower: Follower
    definitions: CheckedDefinitions
    sessions: ConsoleSessions
    tokens: TokenBook
    figures: Figures
    tails: Tails
    registrations: RegistrationBook
    proof_holds: Callable[[str, str], bool] = field(default=_hold_always)
    """Says whether what a session was opened with is still good."""
    rights: RightsCache = field(default_factory=RightsCache)
    _remembered: dict[str, tuple[float, Any]] = field(default_factory=dict)
    notices: dict[str, str] = field(default_factory=dict)
    """What a session is told on its next page."""
    _brokerage: Brokerage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    @contextmanager
    def open(cls, config: Config) -> Iterator[Desk]:
        """Open a desk for as long as the block lasts."""
        with ExitStack() as stack:
            database = stack.enter_context(Database.open(config.store.connection_url()))
            people = Pseudonyms.open(config.audit.pseudonym_key)
            log = AuditLog.open(database, config.audit.signing_key)
            stack.callback(log.close)
            stack.enter_context(keep_pruned(log, config.audit))
            follower = stack.enter_context(Follower(database, lease=config.store.lease))
            tails = Tails(config)
            stack.callback(tails.close)
            yield cls(
                config=config,
                database=database,
                log=log,
                people=people,
                follower=follower,
                definitions=CheckedDefinitions(
                    Definitions(database), recorder(log, people), signer=log.signer
                ),
                sessions=ConsoleSessions(database, config.console.idle, config.console.session),
                tokens=TokenBook(database),
                figures=Figures(config),
                tails=tails,
                registrations=RegistrationBook(database),
            )

    def current(self) -> tuple[Snapshot, DefinitionSet]:
        """Return the definitions in force; raise `StaleError` where they may be others."""
        snapshot = self.follower.current()
        return snapshot, self.definitions.meaning(snapshot)

    def visit(self, user: str, session: ConsoleSession | None = None, **rest: Any) -> Visit:
        """Return the visit of a user under the definitions in force."""
        snapshot, definitions = self.current()
        defined = self.config.gateway.authentication.defined_users

        def find() -> ConsoleRights:
            return find_rights(definitions, user, defined_users=defined)

        rights = self.rights.find(snapshot.mark, user, find)
        if not rights.known:
            raise HiddenError(f"{user} is blocked, or not defined", fix="ask who administers")
        return Visit(self, user, session, definitions, snapshot.epoch, rights, **rest)

    def revisit(self, visit: Visit) -> Visit | None:
        """Return a visit as it is now; None where the session has ended."""
        session = visit.session
        if session is None or not self.sessions.holds(session):
            return None
        if not self.proof_holds(session.user, session.proof):
            return None
        try:
            return self.visit(visit.user, session, csrf=visit.csrf, address=visit.address)
        except HiddenError:
            return None

    def follow(self, change: Change) -> None:
        """Wait until this console knows a change that it made."""
        self.follower.wait_for(change.epoch, FOLLOW_SECONDS)

    def environment(self) -> dict[str, Any]:
        """Return what a gateway of these settings would know of its environment now."""
        place = self.config.gateway.place
        return {"time": utc_now()} | ({} if place is None else {"place": place})

    def authorizer(
        self, definitions: DefinitionSet, *, chosen: frozenset[str] | None = None
    ) -> Authorizer:
        """Return what decides under definitions as a gateway does, opt-outs aside."""
        settings = self.config.gateway
        return authorizer_of(
            settings,
            definitions,
            roles=RoleContext(place=settings.place, chosen=chosen),
            # Masks that hash need some key; what they leave does not depend on which.
            read_key=lambda: bytes(32),
            home=lambda: open_key(self.config.trust.key).key,
        )

    def recent_decisions(self, user: str) -> tuple[list[RecentDecision], int]:
        """Return what gateways decided lately, and how many did not answer; it is on record."""
        self.record("decisions", user)
        return self.remember(
            "decisions",
            _DECISION_SECONDS,
            lambda: ClientRequests(self.database).recent(_ANSWER_SECONDS),
        )

    def compliance(self) -> ComplianceBook:
        """Return how services honour privacy requests."""
        return self.privacy().book.compliance

    def privacy(self) -> PrivacyBroker:
        """Return the broker of privacy requests, under the definitions in force."""
        return self._open_brokerage().open().broker

    def inquiries(self) -> Inquiries:
        """Return what publishers and services may look at, under the definitions in force."""
        return self._open_brokerage().open().inquiries

    def _open_brokerage(self) -> Brokerage:
        with self._lock:
            if self._brokerage is None:
                # Only now: it makes the key of consent where there is none yet.
                consent = ConsentBook.open(self.database, self.config.consent.key)
                book = RequestBook(self.database, consent, Sealer(self.config.consent.key.read()))
                self._brokerage = Brokerage(
                    self.follower, self.definitions, book, self.log, self.people
                )
            return self._brokerage

    def remember(self, name: str, seconds: float, ask: Callable[[], Answer]) -> Answer:
        """Return what was asked within the last seconds, else ask; for what many pages show."""
        now = time.monotonic()
        held = self._remembered.get(name)
        if held is not None and now - held[0] < seconds:
            found: Answer = held[1]
            return found
        made = ask()
        self._remembered[name] = (now, made)
        return made

    def has_administrator(self) -> bool:
        """Say whether the definitions let anybody administer."""
        _, definitions = self.current()
        return any(it.administer and who for _, who, it in list_privileges(definitions))

    def record(
        self, what: str, user: str | None, outcome: Outcome = Outcome.DONE, **details: Any
    ) -> None:
        """Put what somebody did at the console into the audit log."""
        actor = None if user is None else self.people.person(user)
        epoch = self.follower.current().epoch
        self.log.append(
            [Entry.make(f"{KIND}.{what}", outcome, actor=actor, epoch=epoch, **details)]
        )

    def tell(self, visit: Visit, notice: str) -> None:
        """Say something on the next page of a session."""
        if visit.session is not None:
            if len(self.notices) > 1_000:  # noqa: PLR2004 - of browsers that never came back
                self.notices.clear()
            self.notices[visit.session.digest] = notice

    def take_notice(self, visit: Visit) -> str:
        """Return what a session is to be told, once."""
        return self.notices.pop(visit.session.digest, "") if visit.session is not None else ""


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody who is signed in asks for a page."""

    desk: Desk
    user: str
    session: ConsoleSession | None
    """None: a program that shows an access token; it reads JSON alone."""
    definitions: DefinitionSet
    epoch: int
    rights: ConsoleRights
    csrf: str = ""
    address: str = ""
    led_here: bool = False
    """Whether a page of others led them here: what is done in their name waits for their word."""

    @property
    def administers(self) -> bool:
        """Whether they may change definitions."""
        return self.rights.administers

    def sees(self, room: str | None) -> bool:
        """Say whether they may see a room; None is a room for everybody who is signed in."""
        return self.rights.known and (room is None or self.rights.sees(room))

    def require(self, room: str | None) -> None:
        """Refuse who may not see a room."""
        if not self.sees(room):
            fix = "ask who administers for a right"
            if room is not None:
                fix += f" with `monitor: [$console/{room}]`"
            raise HiddenError("your rights do not show this page", fix=fix)

    def require_administration(self) -> None:
        """Refuse who may not change definitions."""
        if not self.administers:
            raise HiddenError(
                "your rights do not let you change this",
                fix="ask who administers for a right with `administer: true`",
            )


def visit_of(request: Request) -> Visit:
    """Return who asks; the gate found it out."""
    found = request.scope["state"].get(VISIT)
    if not isinstance(found, Visit):
        raise NobodyError("nobody is signed in", fix="sign in")
    return found


Visitor = Annotated[Visit, Depends(visit_of)]
"""The parameter by which a page learns who asks."""


def make_csrf(shown: str) -> str:
    """Return the token that pages of a session carry; who has no cookie of it cannot make one."""
    return hmac.digest(shown.encode(), b"penstock console csrf", "sha256").hex()
