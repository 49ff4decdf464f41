"""Bounds how many entries each principal, and all together, may cause in the audit log.

    add ──▶ account of the principal: equal events are counted ──▶ spend: one of each in turn

Rules that hold here:
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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.gateway.limits import network_of

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
