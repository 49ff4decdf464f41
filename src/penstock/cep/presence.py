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
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.lang.moments import EPOCH

DAY: Final = 86_400_000
_LAST: Final = 2
_END: Final = 3
_FOREVER: Final = 1 << 62
_DATES: Final = 1000


_Spell: TypeAlias = tuple[int, int, str]
"""A stay of somebody at a known place: first tick, last tick, who."""


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
        self._dates: dict[int, int] = {}
        # (day, place) → the same stays, of everybody in order.
        self._order: dict[tuple[int, str], list[_Spell]] = {}

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
        order = self._order.setdefault((day, place), [])
        if not stays or first > stays[-1] + 1:
            stays.extend((first, last))
            insort(order, (first, last, who))
            self._count += 1
        else:
            before = len(stays)
            _insert(stays, first, last)
            self._count += (len(stays) - before) // 2
            order[:] = sorted(
                [spell for spell in order if spell[2] != who]
                + [(begin, end, who) for begin, end in _pairs(stays)]
            )
        while self._count > self._limit:
            self._forget(min(self._days))
            self.dropped += 1

    def _forget(self, day: int) -> None:
        for place, people in self._days.pop(day).items():
            self._order.pop((day, place), None)
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
            for (_, place), stays in self._whereabouts(who).items()
            for first, last in _pairs(stays)
            if last >= since
        ]
        return sorted(found, key=lambda stay: (stay.first, stay.place))

    def meetings(self, who: str, now: int) -> list[Meeting]:
        """Return whom one person met within the window: each place and day apart."""
        since = self._settle(now)
        present: dict[tuple[int, str], set[str]] = {}
        for other, (place, first, _, _) in self._open.items():
            present.setdefault((first // self._per_day, place), set()).add(other)
        found = []
        for (day, place), mine in self._whereabouts(who).items():
            others = self._others(day, place, present.get((day, place), ()))
            found += [
                Meeting(other, place, day, first, ticks)
                for other, (first, ticks) in _overlaps(mine, others, since).items()
                if other != who
            ]
        return sorted(found)

    def _others(self, day: int, place: str, here: Collection[str]) -> list[_Spell]:
        """Return all stays at a place on a day in order; `here` are those whose is open."""
        gathered = self._order.get((day, place), [])
        if not here:
            return gathered
        # Who is there now may have been there before: their stays are joined first.
        spells = [spell for spell in gathered if spell[2] not in here]
        for who in here:
            stays = self._stays(who, day, place)
            spells += [(first, last, who) for first, last in _pairs(stays)]
        spells.sort()
        return spells

    def _whereabouts(self, who: str) -> dict[tuple[int, str], array[int]]:
        """Return the stays of one person by day and place, the open one too."""
        found = {
            (day, place): people[who]
            for day, places in self._days.items()
            for place, people in places.items()
            if who in people
        }
        run = self._open.get(who)
        if run is not None:
            day = run[1] // self._per_day
            found[day, run[0]] = self._stays(who, day, run[0])
        return found

    def _stays(self, who: str, day: int, place: str) -> array[int]:
        """Return a person's stays at a place on a day, joined with the open one."""
        stays = array("q", self._days.get(day, {}).get(place, {}).get(who, ()))
        run = self._open.get(who)
        if run is not None and run[0] == place and run[1] // self._per_day == day:
            _insert(stays, run[1], run[_LAST])
        return stays

    def date_of(self, tick: int) -> int:
        """Return the date of a tick as a number such as 20260301."""
        day = tick // self._per_day
        date = self._dates.get(day)
        if date is None:
            moment = EPOCH + timedelta(days=day)
            date = moment.year * 10_000 + moment.month * 100 + moment.day
            if len(self._dates) > _DATES:
                self._dates.clear()
            self._dates[day] = date
        return date

    def time_of(self, tick: int) -> datetime:
        """Return the moment at which a tick begins."""
        return EPOCH + timedelta(milliseconds=tick * self.every)

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
        self._order = {
            (day, place): sorted(
                (first, last, who) for who, it in people.items() for first, last in _pairs(it)
            )
            for day, places in self._days.items()
            for place, people in places.items()
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


def _overlaps(mine: array[int], others: list[_Spell], since: int) -> dict[str, tuple[int, int]]:
    """Return for each of the others the first tick and the number of ticks shared."""
    found: dict[str, tuple[int, int]] = {}
    for first, last in _pairs(mine):
        begin = max(first, since)
        if last < begin:
            continue
        end = bisect_right(others, (last, _FOREVER))
        for their_first, their_last, who in [it for it in others[:end] if it[1] >= begin]:
            start = max(begin, their_first)
            ticks = min(last, their_last) - start + 1
            known = found.get(who)
            found[who] = (start, ticks) if known is None else (known[0], known[1] + ticks)
    return found
