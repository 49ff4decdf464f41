"""Turns of log-ins: few passwords are checked at a time, and everybody's turn comes.

    CONNECT ──▶ a place? ──▶ wait for a turn (`LoginOrder`) ──▶ check ──▶ right: at once
                  │no                                              └────▶ wrong: after a pause
                  ▼
          refused: busy

Rules that hold here:
- Places are shared fairly among networks (`FairPlaces`): whoever fills the queue keeps nobody
  of another network out of it. One user has
  a part of those of its network, and a smaller one once it was wrong.
- A log-in under a name that does not exist waits as others do, but holds up nobody: a decoy is
  checked for it only while nobody else waits.
- Whoever is wrong is told so a fixed time after its turn began. So it cannot be seen whether the
  name exists, and guessing is slow.
- A turn that its client gave up counts as wrong: hanging up is no way around the back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from penstock.gateway.connection.login_order import LoginOrder, Source
from penstock.gateway.limits import FairPlaces, network_of

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
