"""The life of a part, as a table.

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
"""

from __future__ import annotations

from enum import StrEnum, auto


class State(StrEnum):
    """Where a part is in its life."""

    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    BACKOFF = auto()
    FAILED = auto()
    STOPPING = auto()
    STOPPED = auto()


class Event(StrEnum):
    """What can happen to a part."""

    START = auto()
    """Its turn has come: its process is started."""
    READY = auto()
    """Its probe succeeded."""
    ENDED = auto()
    """Its process has ended, by itself or by our doing."""
    GIVE_UP = auto()
    """It failed too often in too short a time."""
    STOP = auto()
    """It shall stop, and all that stand on it have stopped."""


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.START): State.STARTING,
    (State.WAITING, Event.STOP): State.STOPPED,
    (State.STARTING, Event.READY): State.RUNNING,
    (State.STARTING, Event.ENDED): State.BACKOFF,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.ENDED): State.BACKOFF,
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.BACKOFF, Event.START): State.STARTING,
    (State.BACKOFF, Event.GIVE_UP): State.FAILED,
    (State.BACKOFF, Event.STOP): State.STOPPED,
    (State.FAILED, Event.START): State.STARTING,
    (State.FAILED, Event.STOP): State.STOPPED,
    (State.STOPPING, Event.ENDED): State.STOPPED,
}

ALIVE = frozenset({State.STARTING, State.RUNNING, State.STOPPING})
"""The states in which a process exists."""
