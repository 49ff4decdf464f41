"""The progress of a request at one service: a state machine.

    INIT ──sent──▶ SENT ──acknowledged──▶ ACKNOWLEDGED ──completed──▶ COMPLETED
      │              │                         │                         ▲
      │ gave_up      │ expired                 │ expired                 │ completed, late
      ▼              ▼                         ▼                         │
    SENDFAILED     FAILED ◀────────────────────┘ ────────────────────────┘

Rules that hold here:
- Statuses never go backwards by themselves. A service that is told again stays where it is; what
  comes late or twice changes nothing, except that a completion always counts.
- Only a person begins a failed one anew (`redriven`).
- A request is completed when all its services have completed it; it has failed in part as soon
  as one has failed, whatever the others do, until that one completes late or is begun anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class ProgressStatus(StrEnum):
    """How far one service is."""

    INIT = "INIT"
    SENT = "SENT"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    COMPLETED = "COMPLETED"
    SENDFAILED = "SENDFAILED"
    FAILED = "FAILED"


class ProgressEvent(StrEnum):
    """What can happen to a progress."""

    SENT = "sent"
    GAVE_UP = "gave_up"
    ACKNOWLEDGED = "acknowledged"
    COMPLETED = "completed"
    EXPIRED = "expired"
    REDRIVEN = "redriven"


class RequestStatus(StrEnum):
    """How far a request is as a whole."""

    INIT = "INIT"
    INPROGRESS = "INPROGRESS"
    COMPLETED = "COMPLETED"
    SOMEFAILED = "SOMEFAILED"


_S, _E = ProgressStatus, ProgressEvent

TRANSITIONS: Final[Mapping[tuple[ProgressStatus, ProgressEvent], ProgressStatus]] = (
    MappingProxyType(
        {
            (_S.INIT, _E.SENT): _S.SENT,
            (_S.INIT, _E.GAVE_UP): _S.SENDFAILED,
            # A service may answer before the sender has noted that it sent.
            (_S.INIT, _E.ACKNOWLEDGED): _S.ACKNOWLEDGED,
            (_S.SENT, _E.ACKNOWLEDGED): _S.ACKNOWLEDGED,
            (_S.SENT, _E.EXPIRED): _S.FAILED,
            (_S.SENT, _E.GAVE_UP): _S.SENDFAILED,
            (_S.ACKNOWLEDGED, _E.EXPIRED): _S.FAILED,
            (_S.ACKNOWLEDGED, _E.GAVE_UP): _S.FAILED,
            (_S.SENDFAILED, _E.REDRIVEN): _S.INIT,
            (_S.FAILED, _E.REDRIVEN): _S.INIT,
            **{(status, _E.COMPLETED): _S.COMPLETED for status in _S},
        }
    )
)
OPEN: Final = frozenset({_S.INIT, _S.SENT, _S.ACKNOWLEDGED})
LOST: Final = frozenset({_S.SENDFAILED, _S.FAILED})


def advance(status: ProgressStatus, event: ProgressEvent) -> ProgressStatus:
    """Return the status after an event; what has no transition changes nothing."""
    return TRANSITIONS.get((status, event), status)


def sum_up(statuses: Iterable[ProgressStatus]) -> RequestStatus:
    """Return how far a request is, from how far its services are."""
    found = set(statuses)
    if found <= {_S.COMPLETED}:
        return RequestStatus.COMPLETED
    if found & LOST:
        return RequestStatus.SOMEFAILED
    return RequestStatus.INIT if found == {_S.INIT} else RequestStatus.INPROGRESS
