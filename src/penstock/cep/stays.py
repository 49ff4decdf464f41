"""Stays as runs of ticks, and what they have in common.

Rules that hold here:
- The stays of one person at one place are one array: [first, last, first, last, …], both
  ends included, in order, with a gap between them.
- The stays of everybody at one place are spells: (first tick, last tick, who), in order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, TypeAlias

_FOREVER: Final = 1 << 62

Spell: TypeAlias = tuple[int, int, str]
"""A stay of somebody at a known place: first tick, last tick, who."""


class Spells:
    """The stays of everybody at one place on one day, in order, and how long the longest is."""

    __slots__ = ("longest", "spells")

    def __init__(self, spells: list[Spell]) -> None:
        self.spells = spells
        self.longest = max((last - first for first, last, _ in spells), default=0)

    def add(self, first: int, last: int, who: str) -> None:
        """Take a stay in."""
        insort(self.spells, (first, last, who))
        self.longest = max(self.longest, last - first)

    def during(self, first: int, last: int) -> list[Spell]:
        """Return the stays that have a tick in common with a time."""
        spells = self.spells
        start = bisect_left(spells, (first - self.longest,))
        end = bisect_right(spells, (last, _FOREVER))
        return [it for it in spells[start:end] if it[1] >= first]


def pairs(stays: array[int]) -> Iterator[tuple[int, int]]:
    """Return the first and the last tick of each stay."""
    return zip(stays[::2], stays[1::2], strict=True)


def insert_stay(stays: array[int], first: int, last: int) -> None:
    """Add ticks to stays: those that overlap or touch become one."""
    if not stays or first > stays[-1] + 1:
        stays.extend((first, last))
        return
    firsts, lasts = stays[::2], stays[1::2]
    start = bisect_left(lasts, first - 1)  # the first stay that ends late enough to touch
    end = start
    while end < len(firsts) and firsts[end] <= last + 1:
        first, last = min(first, firsts[end]), max(last, lasts[end])
        end += 1
    stays[2 * start : 2 * end] = array("q", (first, last))


def find_gaps(stays: array[int], first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of a time that lie in none of the stays."""
    found = []
    for number in range(bisect_left(stays[1::2], first), len(stays) // 2):
        begin, end = stays[2 * number], stays[2 * number + 1]
        if begin > last:
            break
        if first < begin:
            found.append((first, begin - 1))
        first = end + 1
    if first <= last:
        found.append((first, last))
    return found


def count_shared(fresh: list[tuple[int, int]], others: Spells, who: str) -> dict[str, int]:
    """Return for each of the others how many of a person's new ticks they share."""
    found: dict[str, int] = {}
    for first, last in fresh:
        for begin, end, other in others.during(first, last):
            ticks = min(end, last) - max(begin, first) + 1
            found[other] = found.get(other, 0) + ticks
    found.pop(who, None)
    return found


def count_common(some: list[tuple[int, int]], stays: list[tuple[int, int]]) -> int:
    """Return how many ticks lie both in some parts of time and in the stays, both in order."""
    total = 0
    for first, last in some:
        # From the end: what is asked for is usually late.
        for begin, end in reversed(stays):
            if end < first:
                break
            if begin <= last:
                total += min(end, last) - max(begin, first) + 1
    return total


def find_overlaps(mine: array[int], others: Spells, since: int) -> dict[str, tuple[int, int]]:
    """Return for each of the others the first tick and the number of ticks shared."""
    found: dict[str, tuple[int, int]] = {}
    for first, last in pairs(mine):
        begin = max(first, since)
        if last < begin:
            continue
        for their_first, their_last, who in others.during(begin, last):
            start = max(begin, their_first)
            ticks = min(last, their_last) - start + 1
            known = found.get(who)
            found[who] = (start, ticks) if known is None else (known[0], known[1] + ticks)
    return found
