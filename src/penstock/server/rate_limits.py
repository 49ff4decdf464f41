"""How much one caller may ask for: so many per second, and so many at a time.

Rules that hold here:
- A bucket of `burst` fills up with `rate` per second. What costs more than is in it is refused,
  and costs nothing.
- What is remembered is bounded: who has not called for longest is forgotten first. A bucket that
  was forgotten is full again, so it is forgotten only when it would be full.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.server.problems import TooManyError

MOST_CALLERS: Final = 10_000


class RateLimit:
    """Buckets of callers."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_for(self, caller: str, cost: float = 1.0) -> float:
        """Take from a bucket; return 0, or the seconds until there is enough in it."""
        now = self._clock()
        level = self._level(caller, now)
        # What is larger than a bucket empties a full one.
        needed = min(cost, self._burst)
        if level >= needed:
            self._buckets[caller] = (level - needed, now)
            self._buckets.move_to_end(caller)
            self._forget(now)
            return 0.0
        return (needed - level) / self._rate

    def is_empty(self, caller: str) -> bool:
        """Say whether there is nothing left in a bucket, and take nothing."""
        return self._level(caller, self._clock()) < 1.0

    def _level(self, caller: str, now: float) -> float:
        level, at = self._buckets.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) * self._rate)

    def _forget(self, now: float) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets))
            full = self._level(oldest, now) >= self._burst
            if not full and len(self._buckets) <= MOST_CALLERS:
                return
            del self._buckets[oldest]


class CallLimits:
    """The limits of users."""

    def __init__(self, rate: RateLimit, at_a_time: int, in_all: int) -> None:
        self._rate = rate
        self._at_a_time = at_a_time
        self._in_all = in_all
        self._running: dict[str, int] = {}
        self._total = 0

    @contextmanager
    def admit(self, user: str, cost: float = 1.0) -> Iterator[None]:
        """Let a call of a user be worked on; refuse it with the seconds to wait."""
        running = self._running.get(user, 0)
        if running >= self._at_a_time:
            raise TooManyError("too many calls of this user are under way", 1.0)
        if self._total >= self._in_all:
            raise TooManyError("too many calls are under way", 1.0)
        wait = self._rate.wait_for(user, cost)
        if wait:
            raise TooManyError("this user calls too often", wait)
        self._running[user] = running + 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            left = self._running[user] - 1
            if left:
                self._running[user] = left
            else:
                del self._running[user]
