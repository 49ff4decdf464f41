"""A decision and its explanation: outcome, deciding part and rule, every rule considered.

Rules that hold here:
- A decision says what it depends on beside principal, purpose, action, topic and definitions:
  who caches it must take that into the key, or ask again.
- A decision is explained in full when it is made, so that a later change cannot alter it.
  Hot paths ask for the short `Decision` and come back for the `Explanation` where it is wanted.
- Explanations name rules, topics and purposes; never payloads or people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

CONSIDERED_LIMIT = 100


class Part(StrEnum):
    """The part of the authorizer that decided."""

    USERS = "users"
    BROKER_TOPICS = "broker topics"
    SUBSCRIPTION = "subscription"
    DECLARED_PURPOSES = "declared purposes"
    CLAIMS = "claims"
    RESERVATIONS = "reservations"
    MESSAGE_PURPOSES = "message purposes"
    CONSENT = "consent"
    POLICIES = "policies"
    PREFERENCES = "preferences"
    EMERGENCIES = "emergencies"
    INTERACTION = "interaction"
    CAPABILITIES = "capabilities"
    CONTENT = "content filter"
    EVENT_TYPES = "event types"


class Depends(IntFlag):
    """What a decision depends on besides principal, action, topic and the definitions."""

    NOTHING = 0
    OBJECT = 1
    """Attributes of `o`."""
    ENVIRONMENT = 2
    """Attributes of `e` other than the time."""
    PUBLISHER = 4
    """Who published: a condition names them, or some publisher has preferences about the
    topic. What else a decision depends on may differ from publisher to publisher then."""
    SITUATION = 8
    """The situations of emergency scenarios."""
    MESSAGE = 16
    """The payload or other parts of the packet. Never remembered."""
    TIME = 32
    """The time. Never remembered."""


VOLATILE: Final = Depends.MESSAGE | Depends.TIME


class Applied(NamedTuple):
    """The situation in which an emergency policy applied."""

    scenario: str
    subject: str | None  # None: it did not matter whose
    situation: str

    def __str__(self) -> str:
        return f"{self.scenario}={self.situation}"


class Reshaped(NamedTuple):
    """What leaves instead of a message."""

    payload: bytes | None
    """None: the message itself is not published."""
    topic: str | None = None
    """None: the topic that it has."""
    copies: tuple[tuple[str, bytes], ...] = ()
    """What is published beside it: topic and payload of each."""
    keeps_properties: bool = False
    """Whether user properties, response topic and correlation data stay."""


Seen = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""What expressions see: s, o, e and t."""


class Reshaping(Protocol):
    """Carries out the transformations that apply to a message."""

    name: str
    """Their names, for the audit log and explanations."""
    fixed: bool
    """Whether the outcome follows from the message alone, whoever gets it."""

    def apply(self, message: Any, see: Callable[[], Seen]) -> Reshaped | str:
        """Return what leaves, or why nothing does."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a decision, for the hot path."""

    allowed: bool
    rule: str
    """The rule that decided; empty where finding its name costs more than deciding does."""
    depends: Depends = Depends.NOTHING
    applied: Applied | None = None
    """The situation in which an emergency policy granted it."""
    overridden: bool = False
    """Whether an emergency set the publisher's preferences aside: to be audited."""
    part: Part = Part.POLICIES
    reshaping: Reshaping | None = None
    """What is done to the message before it leaves; who ignores it must let nothing pass."""

    def __bool__(self) -> bool:
        return self.allowed


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
    part: Part = Part.POLICIES

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
