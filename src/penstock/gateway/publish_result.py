"""What becomes of a message that is to be published, and who makes its event durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

POLICY: Final = "policy"
DETECTOR: Final = "detector"
EVENT: Final = "event"
DOUBT: Final = "doubt"
UNTOLD: Final = "untold"
"""The gateway that detects was asked and did not say what became of it."""


class Journal(Protocol):
    """What makes things durable in the order of their tickets."""

    durable: int

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when a ticket is durable, or will not be."""


class PublishResult(NamedTuple):
    """What became of a message that was to be published."""

    why: str = ""
    """What stands in the way; nothing, where it may pass."""
    rule: str = ""
    ticket: int = 0
    """Where it was an event: the keeper's number for it."""
    lasting: bool = False
    """Whether the same holds for each message of this client on this topic."""
    journal: Journal | None = None
    """Who makes the event durable; None: the journal of this gateway."""
    waits: Awaitable[PublishResult] | None = None
    """Gives the answer, where it takes until other gateways have said something."""


PASSES: Final = PublishResult(lasting=True)
NO_DETECTOR: Final = PublishResult(DETECTOR)
NO_EVENT: Final = PublishResult(EVENT)
NOT_TOLD: Final = PublishResult(UNTOLD)
IN_DOUBT: Final = PublishResult(DOUBT)
"""It cannot be decided now; who asks waits and asks again."""
