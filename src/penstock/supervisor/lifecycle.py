"""The life of a part, as a table, and the backoff between its restarts.

                 START              READY
    waiting ──────────────▶ starting ──────▶ running
       │                     ▲   │              │
       │               START │   │ ENDED        │ ENDED
       │                     │   ▼              │
       │                   backoff ◀────────────┘
       │                     │   │
       │                STOP │   │ GIVE_UP            START (asked for by hand)
       │ STOP                │   ├─────────▶ failed ──────────▶ starting
       ▼                     ▼   │              │
    stopped ◀────────────────────┴── STOP ──────┘
       ▲
       └── ENDED ── stopping ◀── STOP ── starting, running

Rules that hold here:
- What the table does not list cannot happen; a caller that tries is wrong.
- A process exists in `starting`, `running` and `stopping`, and in no other state.
- A failure counts for the length of the window. The delay doubles with each failure that
  counts, up to a limit, and half of it is random so that parts that failed together do
  not restart together. As many failures within the window as are declared, and the part
  is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum, auto

from penstock.config.sections.processes import SupervisorSettings


class PartState(StrEnum):
    """Where a part is in its life."""

    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    BACKOFF = auto()
    FAILED = auto()
    STOPPING = auto()
    STOPPED = auto()


class PartEvent(StrEnum):
    """What can happen to a part."""

    START = auto()
    """All it comes after are ready, or its delay is over: its process is started."""
    READY = auto()
    """Its probe succeeded."""
    ENDED = auto()
    """Its process has ended, by itself or by our doing."""
    GIVE_UP = auto()
    """It failed too often in too short a time."""
    STOP = auto()
    """It shall stop, and all that stand on it have stopped."""


TRANSITIONS: dict[tuple[PartState, PartEvent], PartState] = {
    (PartState.WAITING, PartEvent.START): PartState.STARTING,
    (PartState.WAITING, PartEvent.STOP): PartState.STOPPED,
    (PartState.STARTING, PartEvent.READY): PartState.RUNNING,
    (PartState.STARTING, PartEvent.ENDED): PartState.BACKOFF,
    (PartState.STARTING, PartEvent.STOP): PartState.STOPPING,
    (PartState.RUNNING, PartEvent.ENDED): PartState.BACKOFF,
    (PartState.RUNNING, PartEvent.STOP): PartState.STOPPING,
    (PartState.BACKOFF, PartEvent.START): PartState.STARTING,
    (PartState.BACKOFF, PartEvent.GIVE_UP): PartState.FAILED,
    (PartState.BACKOFF, PartEvent.STOP): PartState.STOPPED,
    (PartState.FAILED, PartEvent.START): PartState.STARTING,
    (PartState.FAILED, PartEvent.STOP): PartState.STOPPED,
    (PartState.STOPPING, PartEvent.ENDED): PartState.STOPPED,
}


class Backoff:
    """The failures of one part; clock and randomness are passed in."""

    def __init__(self, settings: SupervisorSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._failed_at: deque[float] = deque()

    def fail(self, now: float) -> float | None:
        """Note a failure; return the seconds to wait, or None where the part is given up."""
        settings = self._settings
        self._failed_at.append(now)
        while self._failed_at[0] <= now - settings.window:
            self._failed_at.popleft()
        count = len(self._failed_at)
        if count >= settings.failures:
            return None
        # The exponent is bounded by the number of failures, which is bounded by settings.
        whole = min(settings.backoff_limit, settings.backoff * 2.0 ** (count - 1))
        return whole * (0.5 + 0.5 * self._random())

    def forget(self) -> None:
        """Forget all failures, because someone asked to try again."""
        self._failed_at.clear()
