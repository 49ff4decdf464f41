"""Who was where, and with whom: kept as stays, not as samples.

A sample says that somebody was at a place in one tick (a period of `every` milliseconds).
What is kept is exactly the set of (who, place, tick), written as stays: runs of ticks. A
sample that prolongs the present stay changes one number.

    day → place → who → [first, last, first, last, …]

Rules that hold here:
- A stay lies within one day (UTC) and holds every tick from its first to its last. Stays
  of one person at one place stand in order, with a gap between them.
- Who and place are texts; a sample without either does not count.
- Days that lie before the window are forgotten whole; ticks before it do not count.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

from penstock.lang.moments import EPOCH

DAY: Final = 86_400_000
_LAST: Final = 2
_END: Final = 3


class Stay(NamedTuple):
    """An uninterrupted stay, in ticks, both ends included."""

    place: str
    first: int
    last: int


class Meeting(NamedTuple):
    """How many ticks two people were at one place on one day, and since when."""

    other: str
    place: str
    day: int
    first: int
    ticks: int


class Presence:
    """The stays of everybody within a window."""

    def __init__(self, every: int, within: int, limit: int) -> None:
        self.every = every
        self.within = within
        self.dropped = 0
        self._per_day = DAY // every
        self._limit = limit
        self._count = 0
        self._days: dict[int, dict[str, dict[str, array[int]]]] = {}
        # who → [place, first, last, end of day]: the stay that the next sample may prolong.
        self._open: dict[str, list[Any]] = {}

    def add(self, who: Any, place: Any, at: int) -> None:
        """Take a sample."""
        tick = at // self.every
        run = self._open.get(who)
        if run is not None and run[0] == place:
            last = run[_LAST]
            if tick == last or (tick == last + 1 and tick < run[_END]):
                run[_LAST] = tick
                return
        self._begin(who, place, tick)

    def _begin(self, who: Any, place: Any, tick: int) -> None:
        if type(who) is not str or type(place) is not str:
            return
        run = self._open.get(who)
        if run is not None:
            if tick < run[_LAST]:
                # It came late: what is open now stays open.
                self._store(who, place, tick, tick)
                return
            self._store(who, run[0], run[1], run[_LAST])
        day = tick // self._per_day
        self._open[who] = [place, tick, tick, (day + 1) * self._per_day]

    def _store(self, who: str, place: str, first: int, last: int) -> None:
        day = first // self._per_day
        people = self._days.setdefault(day, {}).setdefault(place, {})
        stays = people.get(who)
        if stays is None:
            stays = people[who] = array("q")
        before = len(stays)
        _insert(stays, first, last)
        self._count += (len(stays) - before) // 2
        while self._count > self._limit:
            self._forget(min(self._days))
            self.dropped += 1

    def _forget(self, day: int) -> None:
        for people in self._days.pop(day).values():
            self._count -= sum(len(stays) for stays in people.values()) // 2

    def _settle(self, now: int) -> int:
        """Forget what is past; return the first tick that counts."""
        since = (now - self.within) // self.every + 1
        for day in [day for day in self._days if day < since // self._per_day]:
            self._forget(day)
        return since

    def visits(self, who: str, now: int) -> list[Stay]:
        """Return the stays of one person within the window, in order."""
        since = self._settle(now)
        found = [
            Stay(place, max(first, since), last)
            for _, place, stays, _ in self._shared_places(who)
            for first, last in _pairs(stays)
            if last >= since
        ]
        return sorted(found, key=lambda stay: (stay.first, stay.place))

    def meetings(self, who: str, now: int) -> list[Meeting]:
        """Return whom one person met within the window: each place and day apart."""
        since = self._settle(now)
        found = []
        for day, place, mine, people in self._shared_places(who):
            for other, theirs in people.items():
                if other != who:
                    first, ticks = _overlap(mine, theirs, since)
                    if ticks:
                        found.append(Meeting(other, place, day, first, ticks))
        return sorted(found)

    def _shared_places(
        self, who: str
    ) -> Iterator[tuple[int, str, array[int], dict[str, array[int]]]]:
        """Yield the days and places of one person, with all who were there, open stays too."""
        present: dict[tuple[int, str], list[tuple[str, int, int]]] = {}
        for other, (place, first, last, _) in self._open.items():
            day = first // self._per_day
            present.setdefault((day, place), []).append((other, first, last))
        seen = {(day, place) for day, places in self._days.items() for place in places}
        for day, place in sorted(seen | set(present)):
            people = self._days.get(day, {}).get(place, {})
            here = present.get((day, place), ())
            if who not in people and all(other != who for other, _, _ in here):
                continue
            if here:
                people = dict(people)
                for other, first, last in here:
                    stays = array("q", people.get(other, ()))
                    _insert(stays, first, last)
                    people[other] = stays
            yield day, place, people[who], people

    def day_of(self, tick: int) -> int:
        """Return the date of a tick as a number such as 20260301."""
        moment = EPOCH + timedelta(milliseconds=tick * self.every)
        return moment.year * 10_000 + moment.month * 100 + moment.day

    def save(self) -> Any:
        """Return all stays as JSON data."""
        days = [
            [day, [[place, [[who, list(it)] for who, it in people.items()]]
                   for place, people in places.items()]]
            for day, places in self._days.items()
        ]  # fmt: skip
        return [days, [[who, *run] for who, run in self._open.items()]]

    def load(self, state: Any) -> None:
        """Take all stays back."""
        days, runs = state
        self._days = {
            day: {place: {who: array("q", it) for who, it in people} for place, people in places}
            for day, places in days
        }
        self._open = {who: run for who, *run in runs}
        self._count = sum(
            len(stays) // 2
            for places in self._days.values()
            for people in places.values()
            for stays in people.values()
        )


def _pairs(stays: array[int]) -> Iterator[tuple[int, int]]:
    return zip(stays[::2], stays[1::2], strict=True)


def _insert(stays: array[int], first: int, last: int) -> None:
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


def _overlap(mine: array[int], theirs: array[int], since: int) -> tuple[int, int]:
    """Return the first tick and the number of ticks that two people share."""
    ticks = 0
    begin = 0
    here = there = 0
    mine_end, theirs_end = len(mine), len(theirs)
    while here < mine_end and there < theirs_end:
        my_last, their_last = mine[here + 1], theirs[there + 1]
        first = max(mine[here], theirs[there], since)
        last = min(my_last, their_last)
        if last >= first:
            begin = begin if ticks else first
            ticks += last - first + 1
        if my_last < their_last:
            here += 2
        else:
            there += 2
    return begin, ticks
