"""Stays at places, the time that stays share, and its sums by pair and day.

Rules that hold here:
- The stays of one person at one place are one array: [first, last, first, last, …], the
  moments of their first and last samples in milliseconds, in order. Two samples belong to
  one stay where they are at most `reach` apart: between stays there is more than that.
- A stay stands for all ticks (periods of `every` milliseconds) from that of its first
  sample to that of its last. `reach` is no less than `every`: two stays share no tick.
- Everything else here is in ticks, both ends included. The stays of everybody at one place
  are intervals: (first tick, last tick, who), in order.
- The sums of pairs grow as stays end: day → who → [numbers of the others, in order] and [ticks
  with each of them]. Both of a pair have the sum, so that a person's contacts are found without
  looking at anybody else. A sum takes eight bytes; numbers are given by day.
- A day with too many pairs has no sums from then on (`has`): contacts are computed from stays.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from sys import byteorder
from typing import Any, Final, TypeAlias

_KIND: Final = "I"
_FOREVER: Final = 1 << 62
_NOBODY: Final = ""
"""Stands for somebody who was forgotten; no one has it for a name."""

Ticks: TypeAlias = tuple[int, int]
"""A run of ticks: the first and the last."""
Interval: TypeAlias = tuple[int, int, str]
"""A stay of somebody at a known place: first tick, last tick, who."""


class IntervalIndex:
    """The stays of everybody at one place on one day, in order, and how long the longest is."""

    __slots__ = ("intervals", "longest")

    def __init__(self, intervals: list[Interval]) -> None:
        self.intervals = intervals
        self.longest = max((last - first for first, last, _ in intervals), default=0)

    def add(self, first: int, last: int, who: str) -> None:
        """Take a stay in."""
        insort(self.intervals, (first, last, who))
        self.longest = max(self.longest, last - first)

    def overlapping(self, first: int, last: int) -> list[Interval]:
        """Return the stays that have a tick in common with a time."""
        intervals = self.intervals
        start = bisect_left(intervals, (first - self.longest,))
        end = bisect_right(intervals, (last, _FOREVER))
        return [it for it in intervals[start:end] if it[1] >= first]


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


def count_shared(fresh: list[Ticks], others: IntervalIndex, who: str) -> dict[str, int]:
    """Return for each of the others how many of a person's new ticks they share."""
    found: dict[str, int] = {}
    for first, last in fresh:
        for begin, end, other in others.overlapping(first, last):
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


def find_overlaps(
    mine: list[Ticks], others: IntervalIndex, since: int
) -> dict[str, tuple[int, int]]:
    """Return for each of the others the first tick and the number of ticks shared."""
    found: dict[str, tuple[int, int]] = {}
    for first, last in mine:
        begin = max(first, since)
        if last < begin:
            continue
        for their_first, their_last, who in others.overlapping(begin, last):
            start = max(begin, their_first)
            ticks = min(last, their_last) - start + 1
            known = found.get(who)
            found[who] = (start, ticks) if known is None else (known[0], known[1] + ticks)
    return found


class _Day:
    """The sums of one day."""

    __slots__ = ("names", "numbers", "others", "pairs", "ticks")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.others: list[array[int]] = []
        self.ticks: list[array[int]] = []
        self.pairs = 0

    def number(self, who: str) -> int:
        """Return a person's number; a new one where there is none yet."""
        found = self.numbers.get(who)
        if found is None:
            found = self.numbers[who] = len(self.names)
            self.names.append(who)
            self.others.append(array(_KIND))
            self.ticks.append(array(_KIND))
        return found

    def add(self, one: int, other: int, ticks: int) -> None:
        """Add to what one person has with another."""
        others, sums = self.others[one], self.ticks[one]
        place = bisect_left(others, other)
        if place < len(others) and others[place] == other:
            sums[place] += ticks
        else:
            others.insert(place, other)
            sums.insert(place, ticks)
            self.pairs += 1


class PairDurations:
    """The sums of all days."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pairs = 0
        self._days: dict[int, _Day | None] = {}

    def add(self, day: int, who: str, shared: Mapping[str, int]) -> None:
        """Add ticks that a person shared with others; none of them counted before."""
        if not shared:
            return
        if day not in self._days:
            self._days[day] = _Day()
        held = self._days[day]
        if held is None:
            return
        before = held.pairs
        me = held.number(who)
        for other, ticks in shared.items():
            number = held.number(other)
            held.add(me, number, ticks)
            held.add(number, me, ticks)
        self._pairs += held.pairs - before
        if self._pairs > self._limit:
            self._pairs -= held.pairs
            self._days[day] = None

    def has(self, day: int) -> bool:
        """Tell whether there are sums of a day."""
        return self._days.get(day, True) is not None

    def of(self, day: int, who: str) -> Iterator[tuple[str, int]]:
        """Yield with whom a person was for how many ticks of a day."""
        held = self._days.get(day)
        number = None if held is None else held.numbers.get(who)
        if held is None or number is None:
            return iter(())
        found = map(held.names.__getitem__, held.others[number])
        return zip(found, held.ticks[number], strict=True)

    def forget(self, day: int) -> None:
        """Forget a day."""
        held = self._days.pop(day, None)
        if held is not None:
            self._pairs -= held.pairs

    def forget_person(self, who: str) -> None:
        """Forget with whom somebody was; the number that stood for them is nobody's any more."""
        for held in self._days.values():
            number = None if held is None else held.numbers.pop(who, None)
            if held is None or number is None:
                continue
            before = held.pairs
            for other in held.others[number]:
                place = bisect_left(held.others[other], number)
                del held.others[other][place], held.ticks[other][place]
            held.pairs -= 2 * len(held.others[number])
            held.names[number] = _NOBODY
            held.others[number], held.ticks[number] = array(_KIND), array(_KIND)
            self._pairs -= before - held.pairs

    def save(self) -> Any:
        """Return all sums as JSON data."""
        return [
            [day, held and [held.names, _write(held.others), _write(held.ticks)]]
            for day, held in self._days.items()
        ]

    def load(self, state: Any) -> None:
        """Take all sums back."""
        self._days, self._pairs = {}, 0
        for day, saved in state:
            if saved is None:
                self._days[day] = None
                continue
            held = self._days[day] = _Day()
            held.names = saved[0]
            held.numbers = {name: number for number, name in enumerate(held.names)}
            held.others, held.ticks = _read(saved[1]), _read(saved[2])
            held.pairs = sum(map(len, held.others))
            self._pairs += held.pairs


def _write(rows: list[array[int]]) -> list[str]:
    return [b64encode(_little(row).tobytes()).decode() for row in rows]


def _read(rows: list[str]) -> list[array[int]]:
    return [_little(array(_KIND, b64decode(row))) for row in rows]


def _little(row: array[int]) -> array[int]:
    """Return a row as machines with the least byte first have it; or as it was, back again."""
    if byteorder == "little":
        return row
    turned = row[:]
    turned.byteswap()
    return turned
