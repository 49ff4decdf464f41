"""What a step comes to: events, transitions, and messages to publish.

Rules that hold here:
- All stands in the order in which it came about.
- `depth` counts the actions that led to a step; a message that it publishes is one deeper.
  Whoever publishes it decides how deep is too deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from penstock.cep.rows import Row

DetectedEvent: TypeAlias = tuple[str, Row]
"""An event type, and the row that says what happened or holds, and when."""


class TransitionCause(StrEnum):
    """What brings a transition about."""

    EVENT = "detected"
    HAND = "manual"
    TIME = "time"
    """It was held by hand for a time that is over."""
    LIMIT = "limit"
    """Too many others are in some situation."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A scenario's step from one situation to another; None is inactive.

    `event`, `values` and `evolution`, the number of the plan's evolution, are known where an
    event brought it about.
    """

    scenario: str
    subject: str
    source: str | None
    target: str | None
    at: int
    event: str | None = None
    values: Mapping[str, Any] | None = None
    evolution: int | None = None
    cause: TransitionCause = TransitionCause.EVENT


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that an action wants published."""

    topic: str
    payload: Mapping[str, Any]
    action: str
    scenario: str
    subject: str
    depth: int


class StepResult:
    """What one step came to.

    Most steps come to little: what is empty is shared, and becomes a list of its own when
    something is put in.
    """

    duplicate = False
    """Whether the packet was known already, and so changed nothing."""
    transitions: Sequence[Transition] = ()
    publications: Sequence[Publication] = ()

    def __init__(self, at: int, depth: int, seq: int) -> None:
        self.at = at
        self.depth = depth
        self.seq = seq
        self.detected: list[DetectedEvent] = []
        """All events, primitive and complex."""

    def add_transition(self, transition: Transition) -> None:
        """Note that a scenario evolved."""
        self.transitions = [*self.transitions, transition]

    def add_publications(self, publications: Iterable[Publication]) -> None:
        """Note what actions want published."""
        self.publications = [*self.publications, *publications]
