"""Turns of log-ins: few passwords are checked at a time, and everybody's turn comes.

    CONNECT ──▶ a place? ──▶ wait for a turn (`LoginOrder`) ──▶ check ──▶ right: at once
                  │no                                              └────▶ wrong: after a pause
                  ▼
          refused: busy

    add ──▶ ready: networks in turn, in each its users in turn, of each the first that came
              │ take                      ▲
              ▼                           │ the back-off is over, and no other turn under way
            a turn of network and user ──▶ finish: right ──▶ failures forgotten
                                                 wrong ──▶ counted, back-off

Rules that hold here:
- Places are shared fairly among networks (`FairPlaces`): whoever fills the queue keeps nobody
  of another network out of it. One user has a part of those of its network, and a smaller one
  once it was wrong.
- A log-in under a name that does not exist waits as others do, but holds up nobody: a decoy is
  checked for it only while nobody else waits.
- Whoever is wrong is told so a fixed time after its turn began. So it cannot be seen whether the
  name exists, and guessing is slow.
- A turn that its client gave up counts as wrong: hanging up is no way around the back-off.
- The back-off belongs to a network and a user together. Wrong passwords for somebody's name
  hold up that name from that network only, and other names from there not at all.
- Once a network and user were wrong, they have one turn at a time: the back-off counts for each.
- What is remembered of failures is bounded: so many networks, so many users of each; those
  that failed longest ago are forgotten first.
- `LoginOrder` has no clock and no loop: who calls says what time it is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.gateway.limits import FairPlaces, network_of

FREE_FAILURES: Final = 3
"""So many wrong passwords in a row cost nothing: people mistype."""
LONGEST_BACKOFF: Final = 30.0
FORGET_SECONDS: Final = 900.0
MAX_NETWORKS: Final = 4_096
MAX_USERS: Final = 64
_DOUBLINGS: Final = 5

Login = TypeVar("Login")


class Source(NamedTuple):
    """Who tries to log in: a name, and the network it comes from."""

    network: str
    user: str


class _Record(NamedTuple):
    failures: int
    at: float
    until: float


class Failures:
    """Wrong passwords that were not long ago."""

    def __init__(self) -> None:
        self._networks: OrderedDict[str, OrderedDict[str, _Record]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._networks.values()))

    def __contains__(self, source: Source) -> bool:
        return source.user in self._networks.get(source.network, ())

    def blocked_until(self, source: Source) -> float:
        """Return when the next turn of a source may begin."""
        record = self._networks.get(source.network, OrderedDict()).get(source.user)
        return record.until if record is not None else 0.0

    def add(self, source: Source, now: float) -> None:
        """Count a wrong password."""
        users = self._networks.setdefault(source.network, OrderedDict())
        self._networks.move_to_end(source.network)
        record = users.pop(source.user, None)
        recent = record is not None and now - record.at < FORGET_SECONDS
        failures = 1 + (record.failures if record is not None and recent else 0)
        over = failures - FREE_FAILURES
        wait = min(LONGEST_BACKOFF, 2.0 ** min(over - 1, _DOUBLINGS)) if over > 0 else 0.0
        users[source.user] = _Record(failures, now, now + wait)
        if len(users) > MAX_USERS:
            users.popitem(last=False)
        if len(self._networks) > MAX_NETWORKS:
            self._networks.popitem(last=False)

    def forget(self, source: Source) -> None:
        """Forget the failures of a source that was right."""
        users = self._networks.get(source.network, OrderedDict())
        users.pop(source.user, None)
        if not users:
            self._networks.pop(source.network, None)


class LoginOrder(Generic[Login]):
    """The log-ins that wait for their turn."""

    def __init__(self) -> None:
        self.failures = Failures()
        self._ready: OrderedDict[str, OrderedDict[str, deque[Login]]] = OrderedDict()
        self._parked: dict[Source, deque[Login]] = {}
        self._running: dict[Source, int] = {}
        self._wakes: list[tuple[float, Source]] = []
        self._waking: set[Source] = set()

    def add(self, source: Source, login: Login, now: float) -> None:
        """Let a log-in wait."""
        waiting = self._waiting(source)
        if waiting is not None:
            waiting.append(login)
        elif self._must_wait(source):
            self._parked[source] = deque([login])
        elif self.failures.blocked_until(source) > now:
            self._park(source, deque([login]))
        else:
            self._make_ready(source, deque([login]))

    def count(self, source: Source) -> int:
        """Return how many log-ins of a source wait."""
        return len(self._waiting(source) or ())

    def remove(self, source: Source, login: Login) -> None:
        """Take a log-in out that does not wait any longer."""
        waiting = self._waiting(source)
        if waiting is None or login not in waiting:
            return
        waiting.remove(login)
        if waiting:
            return
        if self._parked.pop(source, None) is None:
            self._drop_ready(source)

    def last(self, source: Source) -> Login | None:
        """Return the log-in of a source that came last."""
        waiting = self._waiting(source)
        return waiting[-1] if waiting else None

    def take(self, now: float) -> Login | None:
        """Give the next log-in its turn, if there is one."""
        while self._wakes and self._wakes[0][0] <= now:
            source = heapq.heappop(self._wakes)[1]
            self._waking.discard(source)
            self._release(source, now)
        if not self._ready:
            return None
        network, users = next(iter(self._ready.items()))
        user, waiting = next(iter(users.items()))
        source = Source(network, user)
        login = waiting.popleft()
        self._drop_ready(source)
        self._running[source] = self._running.get(source, 0) + 1
        if waiting and self._must_wait(source):
            self._parked[source] = waiting
        elif waiting:
            self._make_ready(source, waiting)
        if network in self._ready:
            self._ready.move_to_end(network)
        return login

    def finish(self, source: Source, now: float, *, right: bool | None) -> None:
        """End a turn; None: it was not found out whether the password is right."""
        self._running[source] -= 1
        if not self._running[source]:
            del self._running[source]
        if right:
            self.failures.forget(source)
        elif right is not None:
            self.failures.add(source, now)
            waiting = self._ready.get(source.network, OrderedDict()).get(source.user)
            if waiting is not None:
                self._drop_ready(source)
                self._parked[source] = waiting
        self._release(source, now)

    def has_ready(self) -> bool:
        """Say whether some log-in could have its turn at once."""
        return bool(self._ready)

    def next_wake(self) -> float | None:
        """Return when the first back-off of those that wait is over."""
        return self._wakes[0][0] if self._wakes else None

    def _waiting(self, source: Source) -> deque[Login] | None:
        parked = self._parked.get(source)
        if parked is not None:
            return parked
        return self._ready.get(source.network, OrderedDict()).get(source.user)

    def _must_wait(self, source: Source) -> bool:
        """Say whether another turn of a source that was wrong before is under way."""
        return source in self._running and source in self.failures

    def _release(self, source: Source, now: float) -> None:
        """Let a source that was parked wait for its turn, or for the end of its back-off."""
        if self._must_wait(source) or source not in self._parked:
            return
        waiting = self._parked.pop(source)
        if self.failures.blocked_until(source) > now:
            self._park(source, waiting)
        else:
            self._make_ready(source, waiting)

    def _park(self, source: Source, waiting: deque[Login]) -> None:
        self._parked[source] = waiting
        if source not in self._waking:
            self._waking.add(source)
            heapq.heappush(self._wakes, (self.failures.blocked_until(source), source))

    def _make_ready(self, source: Source, waiting: deque[Login]) -> None:
        self._ready.setdefault(source.network, OrderedDict())[source.user] = waiting

    def _drop_ready(self, source: Source) -> None:
        users = self._ready[source.network]
        del users[source.user]
        if not users:
            del self._ready[source.network]


REFUSAL_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 30.0
"""The longest wait for a turn; as long as the longest back-off."""
_SHARE: Final = 2
_FAILED_SHARE: Final = 8
"""Which part of the places of its network one user may have, and which after a wrong password."""


class BusyError(Exception):
    """There are too many log-ins at the moment."""


class Turn:
    """The turn of one log-in."""

    __slots__ = ("began", "granted", "real", "refused", "right", "slot", "source")

    def __init__(self, source: Source, loop: asyncio.AbstractEventLoop, *, real: bool) -> None:
        self.source = source
        self.granted: asyncio.Future[None] = loop.create_future()
        self.refused: asyncio.Future[None] = loop.create_future()
        """Done where it gives way before its pause is over."""
        self.real = real
        """Whether there is a password to be compared with."""
        self.slot = False
        """Whether it is to be checked at all: not for a name that does not exist, under load."""
        self.began = 0.0
        self.right: bool | None = False
        """What came out: None where it could not be found out."""


class LoginQueue:
    """Who waits to be checked, on the running loop."""

    def __init__(self, slots: int, places: int, per_network: int) -> None:
        self._free = slots
        self._places: FairPlaces[Turn] = FairPlaces(places, per_network, WAIT_SECONDS)
        self._per_network = per_network
        self._order: LoginOrder[Turn] = LoginOrder()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    @asynccontextmanager
    async def turn(self, address: str, user: str, *, real: bool = True) -> AsyncIterator[Turn]:
        """Wait for a turn; the block checks the password, if it has a slot, and sets `right`."""
        loop = asyncio.get_running_loop()
        turn = Turn(Source(network_of(address), user), loop, real=real)
        self._enter(turn, loop.time())
        try:
            await self._wait(turn)
            try:
                yield turn
            except Exception:
                turn.right = None
                raise
            finally:
                self._finish(turn, loop.time())
            if turn.right is False:
                pause = turn.began + REFUSAL_SECONDS - loop.time()
                await asyncio.wait((turn.refused,), timeout=max(0.0, pause))
        finally:
            self._places.leave(turn)

    def forgive(self, address: str, user: str) -> None:
        """Forget the failures of a user that needed no turn."""
        self._order.failures.forget(Source(network_of(address), user))

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _enter(self, turn: Turn, now: float) -> None:
        source = turn.source
        if self._order.count(source) >= self._most(source):
            raise BusyError
        claim = self._places.claim(source.network, turn, now)
        if not claim.granted:
            raise BusyError
        if claim.displaced is not None:
            self._displace(claim.displaced)
        self._order.add(source, turn, now)
        self._serve()

    def _displace(self, turn: Turn) -> None:
        self._order.remove(turn.source, turn)
        if not turn.granted.done():
            turn.granted.set_exception(BusyError())
        if not turn.refused.done():
            turn.refused.set_result(None)

    async def _wait(self, turn: Turn) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn.granted
        except BaseException as error:
            if turn.began:
                # It was given up in the step in which its turn began.
                turn.right = None
                self._finish(turn, turn.began)
            else:
                self._order.remove(turn.source, turn)
            if isinstance(error, TimeoutError):
                raise BusyError from None
            raise

    def _finish(self, turn: Turn, now: float) -> None:
        self._free += turn.slot
        source = turn.source
        self._order.finish(source, now, right=turn.right)
        while self._order.count(source) > self._most(source):
            last = self._order.last(source)
            if last is not None:
                self._places.leave(last)
                self._displace(last)
        self._serve()

    def _most(self, source: Source) -> int:
        """Return how many log-ins of a source may wait: fewer once one was wrong."""
        share = _FAILED_SHARE if source in self._order.failures else _SHARE
        return max(1, self._per_network // share)

    def _serve(self) -> None:
        """Grant turns while there are slots."""
        now = asyncio.get_running_loop().time()
        while self._free and (turn := self._order.take(now)) is not None:
            turn.began = now
            turn.slot = turn.real or not self._order.has_ready()
            self._free -= turn.slot
            if not turn.granted.done():
                turn.granted.set_result(None)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = self._order.next_wake()
        if wake is not None and self._free:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wake - now) + 0.001, self._serve)
