"""What was denied, or granted in an emergency only, and which commands were given.

For the audit log: it is counted by who and why, looked at once a second, and written as far as
bounds allow.

    add ──▶ account of the principal: equal events are counted ──▶ spend: one of each in turn

Rules that hold here:
- Nobody is named: users and clients appear as pseudonyms, and so do the names of rules. The
  actor is the user where the client authenticated as one, so that a person's entries can be
  found; else the client.
- A principal causes so many entries an hour (`audit.denials_per_principal`), all of them
  together so many more. What is beyond waits and is counted on: equal events stay one entry
  with a count. What is too manifold for that loses its rule and its client, never its actor.
- A principal is the user; who has not authenticated as one is known by its address, because
  client identifiers are free to choose.
- Emergency grants, overridden preferences and commands have bounds of their own, ten times as
  high: no flood of denials holds them up.
- Recording never stops a message from being denied. What the audit log does not take is
  kept and tried again; the health check of its writer says so.
- Changes of definitions are not recorded here: they are in their own transaction. What only
  this gateway does (transitions) is written by itself, before all that is counted.
- A budget is a token bucket: so many entries at once, and as many more within an hour. Each
  entry costs one of its principal's and one of all. Who has none left waits; counts go on.
- Accounts take turns, and whose last turn was longest ago is first: one with much to tell holds
  up nobody.
- What waits is bounded: so many different events for a principal, then one for each kind, which
  still says whose they were: the user, or the address. Where too many principals have accounts,
  those with nothing to tell go first; beyond that, further ones share an account, and only then
  do events lose whose they are.
- Networks of IPv6 are given to households and hosts whole (/64): they are one address.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.gateway.authorization.recent_decisions import RecentDecisions
from penstock.gateway.limits import network_of
from penstock.gateway.session import Session
from penstock.policy.decision import Applied, Decision
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import AuditFullError, AuditStoppedError
from penstock.store.audit.writer import AuditWriter
from penstock.store.detection.situations import name_details

E = TypeVar("E")

PRINCIPALS: Final = 4_096
_HOUR: Final = 3600.0


class Principal(NamedTuple):
    """Whose events are counted together: a user, or where there is none an address."""

    user: str
    address: str


OTHERS: Final = Principal("", "others")


@dataclass(slots=True)
class Waiting:
    """How often something happened that is not written yet, and since when."""

    times: int
    since: float


class _Bucket:
    """A token bucket that fills up within an hour."""

    __slots__ = ("_most", "_tokens", "_updated")

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._tokens = float(most)
        self._updated = now

    def refill(self, now: float) -> None:
        gained = max(0.0, now - self._updated) * self._most / _HOUR
        self._tokens = min(float(self._most), self._tokens + gained)
        self._updated = max(now, self._updated)

    @property
    def is_full(self) -> bool:
        return self._tokens >= self._most

    @property
    def has_one(self) -> bool:
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1


class _Account(Generic[E]):
    __slots__ = ("bucket", "principal", "turn", "waiting")

    def __init__(self, principal: Principal, most: int, now: float) -> None:
        self.principal = principal
        self.turn = 0  # the number of its last turn
        self.bucket = _Bucket(most, now)
        self.waiting: dict[E, Waiting] = {}


class EventBudget(Generic[E]):
    """Counts events by principal and lets as many out as everybody may cause."""

    def __init__(
        self,
        per_principal: int,
        per_hour: int,
        kept: int,
        fold: Callable[[E, Principal], E],
    ) -> None:
        self._per_principal = per_principal
        self._kept = kept
        self._fold = fold
        self._accounts: dict[tuple[str, str], _Account[E]] = {}
        self._per_hour = per_hour
        self._turn = 0
        self._all: _Bucket | None = None  # made at the first look at the clock

    def add(self, user: str, address: str, event: E, now: float) -> None:
        """Count an event of a user, or of an address where nobody authenticated."""
        # A plain pair finds it, too, and costs less than a `Principal` for each event.
        whose = (user, "") if user else ("", network_of(address))
        account = self._accounts.get(whose)
        if account is None:
            account = self._open(Principal(*whose), now)
        waiting = account.waiting
        if account.principal is OTHERS or (len(waiting) >= self._kept and event not in waiting):
            event = self._fold(event, account.principal)
        seen = waiting.get(event)
        if seen is None:
            waiting[event] = Waiting(1, now)
        else:
            seen.times += 1

    def waiting(self) -> dict[E, int]:
        """Return what is counted and not written yet."""
        found: dict[E, int] = {}
        for account in self._accounts.values():
            for event, waiting in account.waiting.items():
                found[event] = found.get(event, 0) + waiting.times
        return found

    def spend(
        self, now: float, take: Callable[[E, Waiting], bool], *, ending: bool = False
    ) -> None:
        """Hand out what may be written, one of each account in turn, until `take` takes no more."""
        if self._all is None:
            self._all = _Bucket(self._per_hour, now)
        self._all.refill(now)
        turns: list[_Account[E]] = []
        for principal, account in list(self._accounts.items()):
            account.bucket.refill(now)
            if account.waiting:
                turns.append(account)
            elif account.bucket.is_full:
                del self._accounts[principal]
        turns.sort(key=lambda it: it.turn)
        while turns := [it for it in turns if it.waiting and it.bucket.has_one]:
            for account in turns:
                if not self._all.has_one:
                    turns = []
                    break
                event = next(iter(account.waiting))
                if not take(event, account.waiting[event]):
                    return
                del account.waiting[event]
                self._turn += 1
                account.turn = self._turn
                account.bucket.take()
                self._all.take()
        if ending:
            self._give_all(take)

    def _give_all(self, take: Callable[[E, Waiting], bool]) -> None:
        for account in self._accounts.values():
            folded: dict[E, Waiting] = {}
            for event, waiting in account.waiting.items():
                common = self._fold(event, account.principal)
                seen = folded.get(common, Waiting(0, waiting.since))
                folded[common] = Waiting(seen.times + waiting.times, min(seen.since, waiting.since))
            account.waiting = folded
            for event in list(folded):
                if not take(event, folded[event]):
                    return
                del folded[event]

    def _open(self, principal: Principal, now: float) -> _Account[E]:
        if len(self._accounts) >= PRINCIPALS:
            for old in [it for it, account in self._accounts.items() if not account.waiting]:
                del self._accounts[old]
        if len(self._accounts) >= PRINCIPALS:
            principal = OTHERS
        opened = _Account[E](principal, self._per_principal, now)
        return self._accounts.setdefault(principal, opened)


PER_PRINCIPAL: Final = 100
PER_HOUR: Final = 5_000
_GRANTS: Final = 10
_DENIALS_KEPT: Final = 64
_GRANTS_KEPT: Final = 1_024
_SINGLE_KEPT: Final = 10_000
_RECENT_CLIENTS: Final = 1_000
_RECENT_KINDS: Final = 8
"""What is kept of so many clients for people who ask; the audit log has it all."""
_EMERGENCY: Final = "emergency"
_GIVEN: Final = "command.given"
_TRANSFORMED: Final = "transformation"
_MESSAGE_PURPOSES: Final = "purposes of the message"

allow_detail("client", Detail.PSEUDONYM)
allow_detail("folded", Detail.FLAG)


class _Denial(NamedTuple):
    kind: str
    user: str
    client: str
    why: str
    rule: str
    emergency: Applied | None = None
    """Whose emergency, where one was the reason to grant something after all."""
    overridden: bool = False
    folded: bool = False
    """Whether it stands for several, which differ in what is left out."""

    def fold(self, whose: Principal) -> _Denial:
        """Return what all of a kind have in common that one principal caused."""
        client = "" if whose is OTHERS else whose.address
        return _Denial(
            self.kind, whose.user, client, self.why, "", None, self.overridden, folded=True
        )


class Denials:
    """Collects denials and hands them to the audit log."""

    def __init__(
        self,
        writer: AuditWriter | None,
        pseudonyms: Pseudonyms | None,
        *,
        per_principal: int = PER_PRINCIPAL,
        per_hour: int = PER_HOUR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._pseudonyms = pseudonyms
        self._clock = clock
        # Of those that the log does not take, the newest wait; the writer counts refusals.
        self._unwritten: deque[Entry] = deque(maxlen=_SINGLE_KEPT)
        self._recent: OrderedDict[str, deque[_Denial]] = OrderedDict()
        self.decisions = RecentDecisions()
        self.denials: EventBudget[_Denial] = EventBudget(
            per_principal, per_hour, _DENIALS_KEPT, _Denial.fold
        )
        self.grants: EventBudget[_Denial] = EventBudget(
            _GRANTS * per_principal, _GRANTS * per_hour, _GRANTS_KEPT, _Denial.fold
        )

    def delivery(self, session: Session, rule: str, why: str = "purpose") -> None:
        """Count a message that did not reach a client."""
        if rule.startswith(_MESSAGE_PURPOSES):
            # The publisher chose the rest: it must not use up what the reader may cause.
            rule = _MESSAGE_PURPOSES
        self._count("delivery.denied", session, why, rule)

    def publication(self, session: Session, why: str, rule: str = "") -> None:
        """Count a message that did not reach the broker."""
        self._count("publication.denied", session, why, rule)

    def emergency(self, session: Session, decision: Decision) -> None:
        """Count a message that an emergency policy let pass, be it against a preference."""
        user = session.user or ""
        overridden = decision.overridden
        kind = "preference.overridden" if overridden else "emergency.granted"
        applied, client = decision.applied, session.client_id
        granted = _Denial(kind, user, client, _EMERGENCY, decision.rule, applied, overridden)
        self.grants.add(user, session.address, granted, self._clock())

    def transformed(self, session: Session, names: str, what: str = "delivery") -> None:
        """Count a message that somebody got, or published, as transformations made it."""
        user = session.user or ""
        done = _Denial(f"{what}.transformed", user, session.client_id, _TRANSFORMED, names)
        self.grants.add(user, session.address, done, self._clock())

    def subscription(self, session: Session, rule: str) -> None:
        """Count a subscription that was refused."""
        self._count("subscription.denied", session, "purpose", rule)

    def command(self, session: Session, rule: str) -> None:
        """Count a command that its sender may not give."""
        self._count("command.denied", session, "right", rule)

    def command_given(self, session: Session, operation: str) -> None:
        """Count a command that was carried out and changed nothing that is stored."""
        user = session.user or ""
        given = _Denial(_GIVEN, user, session.client_id, operation, "")
        self.grants.add(user, session.address, given, self._clock())

    def refused(self, session: Session, why: str) -> None:
        """Count what could not be understood."""
        self._count("request.refused", session, why)

    def will(self, session: Session, why: str = "right", rule: str = "") -> None:
        """Count a will that was not sent because its publisher may not write."""
        self._count("will.denied", session, why, rule)

    def connection(self, peer: str, why: str) -> None:
        """Count a connection that was refused; the address stands for who it was."""
        denial = _Denial("connection.refused", "", peer, why, "")
        self.denials.add("", peer, denial, self._clock())

    def revocation(self, session: Session) -> None:
        """Count a connection that was ended because its user was removed or blocked."""
        self._count("connection.revoked", session, "revoked")

    def record(self, entry_of: Callable[[Pseudonyms], Entry]) -> None:
        """Hand over something that is written by itself, not counted."""
        if self._writer is not None and self._pseudonyms is not None:
            self._unwritten.append(entry_of(self._pseudonyms))
            self._write_single(self._writer)

    def _write_single(self, writer: AuditWriter) -> None:
        """Hand over what is written by itself, in its order; what is not taken waits."""
        with contextlib.suppress(AuditFullError, AuditStoppedError):
            while self._unwritten:
                writer.submit(self._unwritten[0])
                self._unwritten.popleft()

    def flush(self, epoch: int, *, ending: bool = False) -> None:
        """Hand what was counted to the audit log, as far as it takes it and bounds allow.

        At the end nothing may wait any longer: what has no room by itself is folded.
        """
        writer, pseudonyms = self._writer, self._pseudonyms
        if writer is not None:
            self._write_single(writer)
        now = self._clock()

        def take(denial: _Denial, waiting: Waiting) -> bool:
            if writer is None or pseudonyms is None:
                return True
            try:
                writer.submit(_entry(denial, waiting, now, epoch, pseudonyms))
            except (AuditFullError, AuditStoppedError):
                return False
            return True

        for budget in (self.grants, self.denials):
            budget.spend(now, take, ending=ending)

    def recent(self, client: str) -> list[dict[str, str]]:
        """Return what a client was denied lately, each kind of denial once, the newest last."""
        return [
            {"what": it.kind, "reason": it.why, "rule": it.rule}
            for it in self._recent.get(client, ())
        ]

    def _count(self, kind: str, session: Session, why: str, rule: str = "") -> None:
        user = session.user or ""
        denial = _Denial(kind, user, session.client_id, why, rule)
        self.denials.add(user, session.address, denial, self._clock())
        recent = self._recent.get(session.client_id)
        if recent is None:
            if len(self._recent) >= _RECENT_CLIENTS:
                self._recent.popitem(last=False)
            recent = self._recent[session.client_id] = deque(maxlen=_RECENT_KINDS)
        if denial not in recent:
            recent.append(denial)


def _entry(
    denial: _Denial, waiting: Waiting, now: float, epoch: int, pseudonyms: Pseudonyms
) -> Entry:
    word = "operation" if denial.kind == _GIVEN else "reason"
    details: dict[str, Any] = {word: denial.why, "count": waiting.times}
    if waiting.times > 1:
        details["duration_us"] = max(0, int((now - waiting.since) * 1e6))
    client = pseudonyms.client(denial.client) if denial.client else None
    if client is not None:
        details["client"] = client
    if denial.folded:
        details["folded"] = True
    subject = None
    granted = denial.emergency
    if granted is not None:
        details |= name_details(scenario=granted.scenario, situation=granted.situation)
        subject = pseudonyms.person(granted.subject) if granted.subject is not None else None
    if denial.why == _EMERGENCY:
        details["override"] = denial.overridden
    allowed = denial.why in {_EMERGENCY, _TRANSFORMED}
    outcome = Outcome.ALLOWED if allowed else Outcome.DENIED
    return Entry.make(
        denial.kind,
        Outcome.DONE if denial.kind == _GIVEN else outcome,
        actor=pseudonyms.person(denial.user) if denial.user else client,
        subject=subject,
        rule=pseudonyms.rule(denial.rule),
        epoch=epoch,
        **details,
    )
