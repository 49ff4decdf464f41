"""Messages of actions that the broker has not confirmed yet; they outlive a restart.

Rules that hold here:
- Publications are numbered in the order in which they came up. That order follows from the
  steps alone: whoever repeats the steps gives the same numbers.
- One that is done with, sent or given up, is noted in the journal by its number. After a
  restart those that are not done with are sent: each at least once.
- At most so many wait; where there are more, the oldest are given up and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.cep.outcome import Publication

LIMIT: Final = 10_000
_DONE: Final = b"#done "


class Outbox:
    """What actions want published and is not done with."""

    def __init__(self) -> None:
        self.waiting: dict[int, Publication] = {}
        self.last = 0
        self.given_up = 0

    def put(self, publications: Iterable[Publication]) -> None:
        """Take publications in, in their order."""
        for publication in publications:
            self.last += 1
            self.waiting[self.last] = publication
            if len(self.waiting) > LIMIT:
                del self.waiting[next(iter(self.waiting))]
                self.given_up += 1

    def settle(self, numbers: Iterable[int]) -> bytes:
        """Be done with some; return what the journal has to keep of that."""
        done = list(numbers)
        for number in done:
            self.waiting.pop(number, None)
        return _DONE + ",".join(map(str, done)).encode()

    def replay(self, line: bytes) -> bool:
        """Repeat what the journal kept, if it is about the outbox."""
        if not line.startswith(_DONE):
            return False
        for number in line[len(_DONE) :].split(b","):
            self.waiting.pop(int(number), None)
        return True
