"""A decision and its explanation: outcome, deciding rule, every rule considered.

Rules that hold here:
- A decision is explained in full when it is made, so that a later change cannot alter it.
  Hot paths ask for a plain `bool` and come back for the decision only where it is wanted.
- Explanations name rules, topics and purposes; never payloads or people.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

CONSIDERED_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Considered:
    """One rule that was looked at, and what it says on the question."""

    rule: str
    effect: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The outcome, the rule that decided, why, and all rules that were looked at."""

    allowed: bool
    rule: str
    reason: str
    considered: tuple[Considered, ...] = ()
    more: bool = False  # there are rules beyond those that are listed
    situation: str | None = None  # in which an emergency policy granted it, `covid=Severe`

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        lines = [f"{'allowed' if self.allowed else 'denied'} by {self.rule}: {self.reason}"]
        lines += [f"  {item.rule}: {item.effect}" for item in self.considered]
        if self.more:
            lines.append("  …")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as JSON data."""
        return {
            "allowed": self.allowed,
            "rule": self.rule,
            "reason": self.reason,
            "considered": [{"rule": item.rule, "effect": item.effect} for item in self.considered],
            "more": self.more,
            "situation": self.situation,
        }


def list_considered(items: Iterable[Considered]) -> tuple[tuple[Considered, ...], bool]:
    """Take as many rules as an explanation holds, and tell whether there are more."""
    taken = tuple(islice(items, CONSIDERED_LIMIT + 1))
    return taken[:CONSIDERED_LIMIT], len(taken) > CONSIDERED_LIMIT
