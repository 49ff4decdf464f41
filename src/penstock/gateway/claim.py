"""The claim to detect: who holds it detects for all gateways that share a store.

Rules that hold here:
- It is held until so many seconds after it was last asked for, by a clock that goes on while
  the machine sleeps. Asking, not answering, is when the time begins.
- It is renewed with everything that is written, and by itself where nothing is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.store.detection import DetectionStore, Detector
from penstock.store.follower import boot_clock

_RENEWALS: Final = 3


class Claim:
    """One gateway's claim."""

    def __init__(
        self, store: DetectionStore, lease: float, run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self.lease = lease
        self.pause = lease / _RENEWALS
        """How long it may go without being renewed."""
        self._store = store
        self._run_in_thread = run_in_thread
        self._renewed = float("-inf")

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have it."""
        return boot_clock() <= self._renewed + self.lease

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return boot_clock() >= self._renewed + self.pause

    async def take(self) -> str:
        """Take or renew it; return where the gateway runs that has it, if that is another."""
        asked = boot_clock()
        held: Detector = await self._run_in_thread(self._store.claim)
        if held.holder != self._store.holder:
            return held.place or "elsewhere"
        self.renew(asked)
        return ""

    def renew(self, asked: float) -> None:
        """Take note that it was renewed with something that was begun then."""
        self._renewed = max(self._renewed, asked)

    async def release(self) -> None:
        """Give it back."""
        await self._run_in_thread(self._store.release)
        self._renewed = float("-inf")
