"""Who was where, and with whom: kept as stays, not as samples.

A sample says that somebody was at a place at a moment. Samples are due every `every`
milliseconds, and come a little early or late. Time is counted in ticks: periods of `every`.

    due at    0    1000   2000   3000   4000   5000     every = 1000
    come at  20     980   2010   2990          5010
    ticks     0       1      2                    5     counted: two stays, 3 ticks and 1

Two samples of a person at one place at most one and a half `every` apart belong to one stay.
Somebody is present in every tick from that of the first sample of a stay to that of its
last, those without a sample included: jitter of up to a quarter of `every` either way
costs nothing. Where a sample is missing, the next is two `every` off, and the tick without
one does not count: with exact clocks, presence is exactly the set of (who, place, tick).

A sample that prolongs the present stay changes one number. What is kept:

    day → place → who → [first, last, first, last, …], in milliseconds

How long each two people were together on a day is summed up as stays end (`PairDurations`): a
sum over ten days of meals with everybody is looked up, not computed.

Rules that hold here:
- The results depend on the set of samples, not on their order, nor on how often one came.
- A stay lies within one day of the time zone: the first sample of a day begins a stay. In
  zones, `every` is part of a quarter of an hour: there days begin where a tick does.
- Who and place are texts; a sample without either does not count.
- Days that lie before the window are forgotten whole; ticks before it do not count.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from penstock.cep.context import StateError
from penstock.cep.stays import (
    IntervalIndex,
    PairDurations,
    Ticks,
    count_common,
    count_shared,
    find_gaps,
    find_joined,
    find_overlaps,
    insert_stay,
    to_ticks,
)
from penstock.lang.scalars import EPOCH, UNIVERSAL, Days

_FIRST: Final = 1
_LAST: Final = 2
_END: Final = 3
_NOWHERE: Final = array("q")


class Visit(NamedTuple):
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

    def __init__(
        self, every: int, within: int, limit: int, most_pairs: int, zone: str = UNIVERSAL
    ) -> None:
        self.every = every
        self.within = within
        self.dropped = 0
        self._reach = every + every // 2
        self._days_of = Days(zone)
        self._limit = limit
        self._count = 0
        self._days: dict[int, dict[str, dict[str, array[int]]]] = {}
        # who → [place, first, last, end of day], in milliseconds: the stay that the next
        # sample may prolong.
        self._open: dict[str, list[Any]] = {}
        # (day, place) → whose open stays are there, in the order in which they came.
        self._present: dict[tuple[int, str], dict[str, None]] = {}
        # (day, place) → the ticks of the same stays, of everybody in order.
        self._order: dict[tuple[int, str], IntervalIndex] = {}
        # How long each two were together, as far as stays are stored.
        self._pair_durations = PairDurations(most_pairs)

    def add(self, who: Any, place: Any, at: int) -> None:
        """Take a sample."""
        run = self._open.get(who)
        if run is not None and run[0] == place:
            last = run[_LAST]
            if last <= at <= last + self._reach and at < run[_END]:
                run[_LAST] = at
                return
        self._begin(who, place, at)

    def _begin(self, who: Any, place: Any, at: int) -> None:
        if type(who) is not str or type(place) is not str:
            return
        run = self._open.get(who)
        if run is not None:
            if at < run[_LAST]:
                # It came late: what is open now stays open.
                if place != run[0] or at < run[_FIRST]:
                    self._store(who, place, at, at)
                return
            self._store(who, run[0], run[_FIRST], run[_LAST])
            self._leave(who)
        self._enter(who, [place, at, at, self._days_of.begin(self._days_of.number(at) + 1)])

    def _enter(self, who: str, run: list[Any]) -> None:
        """Begin a stay; both maps have the open ones in the order in which they began."""
        if len(self._open) >= self._limit:
            self._leave(next(iter(self._open)))
            self.dropped += 1
        self._open[who] = run
        self._present.setdefault((self._days_of.number(run[_FIRST]), run[0]), {})[who] = None

    def _leave(self, who: str) -> None:
        """End the open stay of somebody."""
        place, first, _, _ = self._open.pop(who)
        spot = self._days_of.number(first), place
        there = self._present[spot]
        del there[who]
        if not there:
            del self._present[spot]

    def _store(self, who: str, place: str, first: int, last: int) -> None:
        day = self._days_of.number(first)
        people = self._days.setdefault(day, {}).setdefault(place, {})
        stays = people.get(who)
        if stays is None:
            stays = people[who] = array("q")
        order = self._order.get((day, place))
        if order is None:
            order = self._order[day, place] = IntervalIndex([])
        self._pair_durations.add(
            day, who, count_shared(self._fresh(stays, first, last), order, who)
        )
        before = len(stays)
        if not stays or first > stays[-1] + self._reach:
            stays.extend((first, last))
            order.add(first // self.every, last // self.every, who)
        else:
            insert_stay(stays, first, last, self._reach)
            others = [interval for interval in order.intervals if interval[2] != who]
            mine = [(begin, end, who) for begin, end in to_ticks(stays, self.every)]
            self._order[day, place] = IntervalIndex(sorted(others + mine))
        self._count += (len(stays) - before) // 2
        while self._count > self._limit:
            self._forget(min(self._days))
            self.dropped += 1

    def _fresh(self, stays: array[int], first: int, last: int) -> list[Ticks]:
        """Return the ticks that a further stay adds to those of the stays before it."""
        every = self.every
        if not stays or first > stays[-1] + self._reach:
            return [(first // every, last // every)]
        first, last, _ = find_joined(stays, first, last, self._reach)
        return find_gaps(to_ticks(stays, every), first // every, last // every)

    def _forget(self, day: int) -> None:
        self._pair_durations.forget(day)
        for place, people in self._days.pop(day).items():
            self._order.pop((day, place), None)
            self._count -= sum(len(stays) for stays in people.values()) // 2

    def forget(self, who: str) -> int:
        """Forget where somebody was and with whom; return how many stays that were."""
        gone = 0
        if who in self._open:
            self._leave(who)
            gone += 1
        for day, places in self._days.items():
            for place, people in places.items():
                stays = people.pop(who, None)
                if stays is None:
                    continue
                gone += len(stays) // 2
                self._count -= len(stays) // 2
                order = self._order[day, place]
                self._order[day, place] = IntervalIndex(
                    [it for it in order.intervals if it[2] != who]
                )
        self._pair_durations.forget_person(who)
        return gone

    def _settle(self, now: int) -> int:
        """Forget what is past; return the first tick that counts."""
        since = (now - self.within) // self.every + 1
        oldest = self._days_of.number(since * self.every)
        for day in [day for day in self._days if day < oldest]:
            self._forget(day)
        for spot in [spot for spot in self._present if spot[0] < oldest]:
            for who in self._present.pop(spot):
                del self._open[who]
        return since

    def visits(self, who: str, now: int) -> list[Visit]:
        """Return the stays of one person within the window, in order."""
        since = self._settle(now)
        found = [
            Visit(place, max(first, since), last)
            for (_, place), stays in self._stays_by_place(who).items()
            for first, last in to_ticks(stays, self.every)
            if last >= since
        ]
        return sorted(found, key=lambda stay: (stay.first, stay.place))

    def meetings(self, who: str, now: int) -> list[Meeting]:
        """Return whom one person met within the window: each place and day apart."""
        since = self._settle(now)
        return sorted(
            meeting
            for (day, place), mine in self._stays_by_place(who).items()
            for meeting in self._meetings(who, day, place, mine, since)
        )

    def contacts(self, who: str, now: int) -> Iterator[tuple[int, Iterable[tuple[str, int]]]]:
        """Yield the first tick of each day, and with whom one person was for how many ticks."""
        since = self._settle(now)
        days: dict[int, dict[str, array[int]]] = {}
        for (day, place), mine in self._stays_by_place(who).items():
            days.setdefault(day, {})[place] = mine
        for day, places in sorted(days.items()):
            first = self._days_of.begin(day) // self.every
            if first >= since and self._pair_durations.has(day):
                known = dict(self._pair_durations.of(day, who))
                for place, mine in places.items():
                    self._add_open(known, who, day, place, mine)
            else:
                # The window begins within the day, or there are no sums.
                known = {}
                for place, mine in places.items():
                    for it in self._meetings(who, day, place, mine, since):
                        known[it.other] = known.get(it.other, 0) + it.ticks
            yield first, known.items()

    def _add_open(
        self, known: dict[str, int], who: str, day: int, place: str, mine: array[int]
    ) -> None:
        """Add what the sums do not know yet: ticks of stays that are still open."""
        here = self._present.get((day, place), ())
        if not here:
            return
        people = self._days.get(day, {}).get(place, {})
        order = self._order.get((day, place))
        if who in here and order is not None:
            fresh = self._unstored(who, people)
            for other, ticks in count_shared(fresh, order, who).items():
                known[other] = known.get(other, 0) + ticks
        stays = to_ticks(mine, self.every)
        for other in here:
            if other != who:
                ticks = count_common(self._unstored(other, people), stays)
                if ticks:
                    known[other] = known.get(other, 0) + ticks

    def _unstored(self, who: str, people: Mapping[str, array[int]]) -> list[Ticks]:
        """Return the ticks that a person's open stay adds to those stored of its place."""
        _, first, last, _ = self._open[who]
        return self._fresh(people.get(who, _NOWHERE), first, last)

    def _meetings(
        self, who: str, day: int, place: str, mine: array[int], since: int
    ) -> Iterator[Meeting]:
        others = self._others(day, place, self._present.get((day, place), ()))
        found = find_overlaps(to_ticks(mine, self.every), others, since)
        found.pop(who, None)
        for other, (first, ticks) in found.items():
            yield Meeting(other, place, day, first, ticks)

    def _others(self, day: int, place: str, here: Collection[str]) -> IntervalIndex:
        """Return all stays at a place on a day in order; `here` are those whose is open."""
        gathered = self._order.get((day, place)) or IntervalIndex([])
        if not here:
            return gathered
        # Who is there now may have been there before: their stays are joined first.
        intervals = [interval for interval in gathered.intervals if interval[2] not in here]
        for who in here:
            stays = self._stays(who, day, place)
            intervals += [(first, last, who) for first, last in to_ticks(stays, self.every)]
        return IntervalIndex(sorted(intervals))

    def _stays_by_place(self, who: str) -> dict[tuple[int, str], array[int]]:
        """Return the stays of one person by day and place, the open one too."""
        found = {
            (day, place): people[who]
            for day, places in self._days.items()
            for place, people in places.items()
            if who in people
        }
        run = self._open.get(who)
        if run is not None:
            day = self._days_of.number(run[_FIRST])
            found[day, run[0]] = self._stays(who, day, run[0])
        return found

    def _stays(self, who: str, day: int, place: str) -> array[int]:
        """Return a person's stays at a place on a day, joined with the open one."""
        stays = array("q", self._days.get(day, {}).get(place, {}).get(who, ()))
        run = self._open.get(who)
        if run is None or run[0] != place:
            return stays
        if self._days_of.number(run[_FIRST]) == day:
            insert_stay(stays, run[_FIRST], run[_LAST], self._reach)
        return stays

    def date_of(self, tick: int) -> int:
        """Return the date of a tick as a number such as 20260301."""
        return self._days_of.date(self._days_of.number(tick * self.every))

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
        runs = [[who, *run] for who, run in self._open.items()]
        return {"stays": days, "open": runs, "sums": self._pair_durations.save()}

    def load(self, state: Any) -> None:
        """Take all stays back."""
        if not isinstance(state, dict):
            raise StateError(
                "a snapshot has stays of another format", fix="start without it, or go back"
            )
        self._days = {
            day: {place: {who: array("q", it) for who, it in people} for place, people in places}
            for day, places in state["stays"]
        }
        self._order = {
            (day, place): IntervalIndex(
                sorted(
                    (first, last, who)
                    for who, it in people.items()
                    for first, last in to_ticks(it, self.every)
                )
            )
            for day, places in self._days.items()
            for place, people in places.items()
        }
        self._open, self._present = {}, {}
        for who, *run in state["open"]:
            self._enter(who, run)
        self._pair_durations.load(state["sums"])
        self._count = sum(
            len(stays) // 2
            for places in self._days.values()
            for people in places.values()
            for stays in people.values()
        )
