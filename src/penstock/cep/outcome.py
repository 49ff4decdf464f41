"""What a step comes to: events, transitions, and messages to publish.

Rules that hold here:
- All stands in the order in which it came about.
- `depth` counts the actions that led to a step; a message that it publishes is one deeper.
  Whoever publishes it decides how deep is too deep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.cep.rows import Row

Detection: TypeAlias = tuple[str, Row]
"""An event type, and the row that says what happened or holds, and when."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A scenario's step from one situation to another; None is inactive.

    `event` and `values` are what brought it about; None: somebody set the situation by hand.
    `evolution` is the number of the plan's evolution.
    """

    scenario: str
    subject: str
    source: str | None
    target: str | None
    at: int
    event: str | None = None
    values: Mapping[str, Any] | None = None
    evolution: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that an action wants published."""

    topic: str
    payload: Mapping[str, Any]
    action: str
    scenario: str
    subject: str
    depth: int


@dataclass(slots=True)
class Outcome:
    """What one step came to."""

    at: int = 0
    depth: int = 0
    duplicate: bool = False
    seq: int = 0
    detected: list[Detection] = field(default_factory=list)
    """All events, primitive and complex."""
    transitions: list[Transition] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
