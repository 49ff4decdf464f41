"""Stays, the ticks that they stand for, and what those have in common.

Rules that hold here:
- The stays of one person at one place are one array: [first, last, first, last, …], the
  moments of their first and last samples in milliseconds, in order. Two samples belong to
  one stay where they are at most `reach` apart: between stays there is more than that.
- A stay stands for all ticks (periods of `every` milliseconds) from that of its first
  sample to that of its last. `reach` is no less than `every`: two stays share no tick.
- Everything else here is in ticks, both ends included. The stays of everybody at one place
  are spells: (first tick, last tick, who), in order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

_FOREVER: Final = 1 << 62

Ticks: TypeAlias = tuple[int, int]
"""A run of ticks: the first and the last."""
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


def to_ticks(stays: Sequence[int], every: int) -> list[Ticks]:
    """Return the ticks that stays stand for, stay by stay."""
    return [(stays[at] // every, stays[at + 1] // every) for at in range(0, len(stays), 2)]


def find_joined(stays: array[int], first: int, last: int, reach: int) -> tuple[int, int, slice]:
    """Return what stay a further one becomes with those that it joins, and where these are."""
    start = bisect_left(stays[1::2], first - reach)  # the first that ends late enough
    end = start
    while 2 * end < len(stays) and stays[2 * end] <= last + reach:
        first, last = min(first, stays[2 * end]), max(last, stays[2 * end + 1])
        end += 1
    return first, last, slice(2 * start, 2 * end)


def insert_stay(stays: array[int], first: int, last: int, reach: int) -> None:
    """Add a stay: those within reach of each other become one."""
    if not stays or first > stays[-1] + reach:
        stays.extend((first, last))
        return
    first, last, joined = find_joined(stays, first, last, reach)
    stays[joined] = array("q", (first, last))


def find_gaps(runs: list[Ticks], first: int, last: int) -> list[Ticks]:
    """Return the parts of a time that lie in none of the runs."""
    found = []
    for begin, end in runs[bisect_left(runs, first, key=itemgetter(1)) :]:
        if begin > last:
            break
        if first < begin:
            found.append((first, begin - 1))
        first = end + 1
    if first <= last:
        found.append((first, last))
    return found


def count_shared(fresh: list[Ticks], others: Spells, who: str) -> dict[str, int]:
    """Return for each of the others how many of a person's new ticks they share."""
    found: dict[str, int] = {}
    for first, last in fresh:
        for begin, end, other in others.during(first, last):
            ticks = min(end, last) - max(begin, first) + 1
            found[other] = found.get(other, 0) + ticks
    found.pop(who, None)
    return found


def count_common(some: list[Ticks], others: list[Ticks]) -> int:
    """Return how many ticks two lists of runs, each in order, have in common."""
    total = 0
    for first, last in some:
        # From the end: what is asked for is usually late.
        for begin, end in reversed(others):
            if end < first:
                break
            if begin <= last:
                total += min(end, last) - max(begin, first) + 1
    return total


def find_overlaps(mine: list[Ticks], others: Spells, since: int) -> dict[str, tuple[int, int]]:
    """Return for each of the others the first tick and the number of ticks shared."""
    found: dict[str, tuple[int, int]] = {}
    for first, last in mine:
        begin = max(first, since)
        if last < begin:
            continue
        for their_first, their_last, who in others.during(begin, last):
            start = max(begin, their_first)
            ticks = min(last, their_last) - start + 1
            known = found.get(who)
            found[who] = (start, ticks) if known is None else (known[0], known[1] + ticks)
    return found
