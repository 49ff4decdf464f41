"""The engine's timer on the event loop: it wakes the loop when the next timer is due.

Rules that hold here:
- One handle on the loop, for the earliest moment. A moment that moves back costs nothing: the
  loop wakes too early and schedules anew.
- Whoever decides something compares `due` first: a timer takes effect on time, whether the loop
  came to it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

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
