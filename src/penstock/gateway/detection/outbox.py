"""Messages of actions that are not done with yet; they outlive a restart.

    put ──▶ fresh: not detected yet ──▶ detected, to be sent ──▶ done: sent, or given up

Rules that hold here:
- Publications are numbered in the order in which they came up. That order follows from the
  steps alone: whoever repeats the steps gives the same numbers.
- What became of one is noted in the journal by its number: that it was detected, that it is
  done with. After a restart those that are fresh are detected, once, and those that are not
  done with are sent: each at least once.
- One that was detected leads no further: it is kept with the depth 0, which no other has.
- How many may wait is for those to decide who carry them out: whatever they give up is
  noted, too, so that who repeats the steps decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from penstock.cep.steps import Publication

_DONE: Final = b"#done "
_DETECTED: Final = b"#detected "


class Outbox:
    """What actions want published and is not done with."""

    def __init__(self) -> None:
        self.waiting: dict[int, Publication] = {}
        self.last = 0

    def put(self, publications: Iterable[Publication]) -> None:
        """Take publications in, in their order."""
        for publication in publications:
            self.last += 1
            self.waiting[self.last] = publication

    def fresh(self) -> list[int]:
        """Return the numbers of those that were not detected."""
        return [number for number, it in self.waiting.items() if it.depth]

    def detected(self) -> list[int]:
        """Return the numbers of those that were detected, and so are to be sent."""
        return [number for number, it in self.waiting.items() if not it.depth]

    def pass_on(self, numbers: Sequence[int]) -> bytes:
        """Note that some, in their order, were detected; return what the journal keeps of it."""
        self._pass_on(numbers)
        return _DETECTED + b"%d-%d" % (numbers[0], numbers[-1])

    def settle(self, numbers: Iterable[int]) -> bytes:
        """Be done with some; return what the journal has to keep of that."""
        done = list(numbers)
        for number in done:
            self.waiting.pop(number, None)
        return _DONE + ",".join(map(str, done)).encode()

    def replay(self, line: bytes) -> bool:
        """Repeat what the journal kept, if it is about the outbox."""
        if line.startswith(_DONE):
            for number in line[len(_DONE) :].split(b","):
                self.waiting.pop(int(number), None)
        elif line.startswith(_DETECTED):
            first, _, last = line[len(_DETECTED) :].partition(b"-")
            self._pass_on(range(int(first), int(last) + 1))
        else:
            return False
        return True

    def _pass_on(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.waiting:
                self.waiting[number] = replace(self.waiting[number], depth=0)
