"""The outbox: messages of actions that are not sent yet; the journal restores it.

    put ──▶ fresh: not detected yet ──▶ detected, to be sent ──▶ settled: sent, or given up

Rules that hold here:
- Publications are numbered in order. The order follows from the steps alone: a replay gives the
  same numbers.
- The journal has for each number that it was detected, and that it is settled. After a restart
  fresh publications are detected, once, and those that are not settled are sent, at least once.
- A detected publication leads no further: it is kept with the depth 0, which no other has.
- `publishing.actions` limits how many may wait. What it gives up is settled in the journal, too,
  so that a replay decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from penstock.cep.steps import Publication

_DONE: Final = b"#done "
_DETECTED: Final = b"#detected "


class Outbox:
    """The publications of actions that are not settled."""

    def __init__(self) -> None:
        self.waiting: dict[int, Publication] = {}
        self.last = 0

    def put(self, publications: Iterable[Publication]) -> None:
        """Add publications, in their order."""
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
        """Mark some, in their order, as detected; return the line for the journal."""
        self._pass_on(numbers)
        return _DETECTED + b"%d-%d" % (numbers[0], numbers[-1])

    def settle(self, numbers: Iterable[int]) -> bytes:
        """Settle some; return the line for the journal."""
        done = list(numbers)
        for number in done:
            self.waiting.pop(number, None)
        return _DONE + ",".join(map(str, done)).encode()

    def replay(self, line: bytes) -> bool:
        """Replay a line of the journal, if it is about the outbox."""
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
