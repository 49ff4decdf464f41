"""Opt-outs as a gateway holds them: a number for each person, sorted, by purpose.

Rules that hold here:
- An index is never changed: an update makes another one, which shares what is the same. Whoever
  reads one does so without a lock.
- A number counts as often as people who share it have opted out: an opt-in of one takes
  nothing back for another.
- A million opt-outs take eight megabytes; a question takes a search by halves, and nothing
  at all where nobody opted out of a related purpose.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Final

from penstock.model.purposes import is_related

FOLD: Final = 1_024
"""How many changes an index holds beside its sorted numbers."""
MERGE: Final = 64
"""From what share of its numbers on an index is sorted anew."""
_CACHE_LIMIT: Final = 4_096

NumberOf = Callable[[str], int]
"""Gives the number that stands for a person; raises where nobody can be called so."""


class OptedOutNumbers:
    """The numbers of people who opted out of one purpose."""

    __slots__ = ("_count", "_delta", "_sorted")

    def __init__(self, numbers: array[int] | None = None) -> None:
        self._sorted = array("q") if numbers is None else numbers
        self._delta: Mapping[int, int] = {}
        self._count = len(self._sorted)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        held = self._sorted
        at = bisect_left(held, number)
        found = at < len(held) and held[at] == number
        if not self._delta:
            return found
        more = self._delta.get(number, 0)
        return found if not more else self._count_sorted(number) + more > 0

    def change(self, counts: Mapping[int, int]) -> OptedOutNumbers:
        """Return the numbers where each of these counts so often more, or less."""
        delta = dict(self._delta)
        for number, more in counts.items():
            delta[number] = delta.get(number, 0) + more
        delta = {number: more for number, more in delta.items() if more}
        made = OptedOutNumbers(self._sorted)
        if len(delta) > FOLD:
            made._sorted = self._fold(delta)
        else:
            made._delta = delta
        made._count = self._count + sum(counts.values())
        return made

    def _count_sorted(self, number: int) -> int:
        at = bisect_left(self._sorted, number)
        return bisect_right(self._sorted, number, at) - at

    def _fold(self, delta: Mapping[int, int]) -> array[int]:
        """Merge changes into a new sorted array: whole stretches are copied at once."""
        held, folded, done = self._sorted, array("q"), 0
        if len(delta) * MERGE > len(held) and all(more == 1 for more in delta.values()):
            # Two sorted stretches, which sorting merges: how a gateway reads all there is.
            merged = held.tolist()
            merged.extend(sorted(delta))
            merged.sort()
            return array("q", merged)
        for number in sorted(delta):
            start = bisect_left(held, number, done)
            end = bisect_right(held, number, start)
            folded.extend(held[done:start])
            folded.extend([number] * (end - start + delta[number]))
            done = end
        folded.extend(held[done:])
        return folded


class OptOutIndex:
    """All opt-outs of an epoch."""

    __slots__ = ("_refusing", "by_purpose", "epoch", "number_of")

    def __init__(
        self,
        epoch: int = 0,
        by_purpose: Mapping[str, OptedOutNumbers] | None = None,
        number_of: NumberOf | None = None,
    ) -> None:
        self.epoch = epoch
        self.by_purpose: Mapping[str, OptedOutNumbers] = {
            purpose: who for purpose, who in (by_purpose or {}).items() if who
        }
        """Purposes that somebody opted out of."""
        self.number_of = number_of
        """None where the key that marks people is not known: nobody can be found then."""
        self._refusing: dict[str | None, tuple[OptedOutNumbers, ...]] = {}

    def change(
        self,
        epoch: int,
        changes: Mapping[str, Mapping[int, int]],
        number_of: NumberOf | None,
    ) -> OptOutIndex:
        """Return the index after changes: how often more each number counts, by purpose."""
        now = dict(self.by_purpose)
        for purpose, counts in changes.items():
            now[purpose] = now.get(purpose, OptedOutNumbers()).change(counts)
        return OptOutIndex(epoch, now, number_of)

    def refusing(self, purpose: str | None) -> tuple[OptedOutNumbers, ...]:
        """Return who opted out of a purpose, of one above or below it; None: of any purpose."""
        known = self._refusing.get(purpose)
        if known is None:
            if len(self._refusing) >= _CACHE_LIMIT:
                self._refusing.clear()
            known = self._refusing[purpose] = tuple(
                who
                for refused, who in self.by_purpose.items()
                if purpose is None or is_related(refused, purpose)
            )
        return known


NOBODY: Final = OptOutIndex()
