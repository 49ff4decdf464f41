"""The time that decisions and detection go by, and the timer that wakes the loop for the engine.

    wall clock ahead of us ──▶ we follow at once (after a jump: an alarm)
    wall clock behind us   ──▶ we go on, a sixteenth slower, until it has caught up

Rules that hold here:
- One time for policies, events and timers, so that they agree on what is over.
- It never stands still for long and never goes back: a window that has run out stays so,
  and one that runs does run out, whatever is done to the wall clock.
- After a restart it goes on from the latest time that detection knows.
- While the wall clock is behind, `ahead` says by how much: others tell times by their wall
  clocks, and a true time must not pass for one that is long over.
- The timer has one handle on the loop, for the earliest moment. A moment that moves back costs
  nothing: the loop wakes too early and schedules anew.
- Whoever decides something compares `due` first: a timer takes effect on time, whether the loop
  came to it or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.clock import boot_clock
from penstock.telemetry import get_logger, metrics

_JUMP_MS: Final = 60_000
_SLOWER: Final = 16

_JUMPS = metrics.counter(
    "penstock_gateway_clock_jumps",
    "Times that the wall clock moved by more than a minute on its own.",
    direction=("forward", "back"),
)
_log = get_logger("gateway")


class Clock:
    """Tells the time; one for each gateway."""

    __slots__ = ("_behind", "_boot", "_held", "_steady", "_wall", "ahead")

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = boot_clock
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._boot = steady()
        self._held = int(wall() * 1000)
        self._behind = False
        self.ahead = 0
        """How far the time that was told last is ahead of the wall clock, in milliseconds."""

    def now(self) -> int:
        """Return the time, in milliseconds since 1970."""
        wall, boot = int(self._wall() * 1000), self._steady()
        passed = int((boot - self._boot) * 1000)
        # At the least: how far we go on our own, however seldom we are asked.
        least = self._held + (passed - passed // _SLOWER if passed >= _SLOWER else 0)
        if wall >= least:
            if wall - self._held - passed > _JUMP_MS and not self._behind:
                self._tell("forward", wall - self._held - passed)
            self._behind = False
            self._held, self._boot = wall, boot
        elif passed >= _SLOWER:
            if self._held - wall > _JUMP_MS and not self._behind:
                self._behind = True
                self._tell("back", self._held - wall)
            self._held, self._boot = least, boot
        self.ahead = self._held - wall
        return self._held

    def go_on_from(self, at: int) -> None:
        """Take note of a time that was told before: earlier ones are over."""
        self._held = max(self._held, at)

    @staticmethod
    def _tell(direction: str, milliseconds: int) -> None:
        _JUMPS[direction].inc()
        _log.warning("the clock has jumped", kind=direction, seconds=milliseconds // 1000)


NEVER: Final = 1 << 62
_LONGEST: Final = 3600.0


class EngineTimer:
    """Calls `fire` when the engine's next timer is due."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self.due = NEVER
        """When the next timer is due, in milliseconds since 1970."""
        self._fire = fire
        self._wakes_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def schedule(self, due: int | None, now: int) -> None:
        """Wake the loop when the next timer is due; None: there is none."""
        self.due = NEVER if due is None else due
        if self.due >= self._wakes_at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._wakes_at = self.due
        seconds = min(max(self.due - now, 0) / 1000, _LONGEST)
        self._handle = asyncio.get_running_loop().call_later(seconds, self.ring)

    def ring(self) -> None:
        """Fire what is due, now."""
        self._wakes_at = NEVER
        self._fire()

    def clear(self) -> None:
        """Forget the next timer: there is no engine."""
        self.due = NEVER

    def cancel(self) -> None:
        """Wake the loop no more."""
        if self._handle is not None:
            self._handle.cancel()
