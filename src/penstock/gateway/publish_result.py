"""What becomes of a message that a client publishes, and which journal makes its event durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from penstock.policy.decision import Reshaped


class PublishOutcome(StrEnum):
    """The outcome of a publication; gateways exchange the values, audit and metrics show them."""

    ACCEPTED = ""
    DENIED = "policy"
    NO_LEADER = "no_leader"
    """No gateway detects events, or none that does can be reached."""
    INVALID_EVENT = "event"
    """The payload cannot be evaluated."""
    NO_ANSWER = "no_answer"
    """The leader has got the request and has not responded: it may have taken effect."""
    AWAITING_LEADER = "awaiting_leader"
    """Replicated state may be out of date: the caller waits for the leader and retries."""


class Journal(Protocol):
    """Makes steps durable in the order of their tickets."""

    durable: int
    """The last ticket that is durable."""

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when a ticket is durable, or never will be."""


class PublishResult(NamedTuple):
    """What became of a message that was to be published."""

    outcome: PublishOutcome = PublishOutcome.ACCEPTED
    rule: str = ""
    """The rule that denies it."""
    journal: Journal | None = None
    """Where it was an event: what makes that durable."""
    ticket: int = 0
    """The journal's number for it."""
    lasting: bool = False
    """Whether the same holds for each message of this client on this topic."""
    reshaped: Reshaped | None = None
    """What is published instead."""

    @property
    def accepted(self) -> bool:
        """Whether the message may pass."""
        return self.outcome is PublishOutcome.ACCEPTED

    @property
    def awaits_journal(self) -> bool:
        """Whether it was an event that is not durable yet."""
        return self.journal is not None and self.ticket > self.journal.durable

    def when_durable(self, settled: Callable[[bool], None]) -> None:
        """Call back when its event is durable, or never will be."""
        if self.journal is None:
            settled(True)  # noqa: FBT003
        else:
            self.journal.wait(self.ticket, settled)


PendingResult = Awaitable[PublishResult]
"""Gives the result as soon as other gateways, or a reload, have come so far."""

ALWAYS_ACCEPTED: Final = PublishResult(lasting=True)
NO_LEADER: Final = PublishResult(PublishOutcome.NO_LEADER)
