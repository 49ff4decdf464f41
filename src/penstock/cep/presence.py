"""Who was where, and with whom: kept as stays, not as samples.

A sample says that somebody was at a place in one tick (a period of `every` milliseconds).
What is kept is exactly the set of (who, place, tick), written as stays: runs of ticks. A
sample that prolongs the present stay changes one number.

    day → place → who → [first, last, first, last, …]

How long each two people were together on a day is kept up to date beside them, stay by stay
(see `company`): a sum over ten days of meals with everybody is looked up, not computed.

Rules that hold here:
- A stay lies within one day (UTC) and holds every tick from its first to its last. Stays
  of one person at one place stand in order, with a gap between them.
- Who and place are texts; a sample without either does not count.
- Days that lie before the window are forgotten whole; ticks before it do not count.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from penstock.cep.company import Company
from penstock.cep.stays import (
    Spells,
    count_common,
    count_shared,
    find_gaps,
    find_overlaps,
    insert_stay,
    pairs,
)
from penstock.lang.moments import EPOCH

DAY: Final = 86_400_000
_LAST: Final = 2
_END: Final = 3
_DATES: Final = 1000


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

    def __init__(self, every: int, within: int, limit: int, most_pairs: int) -> None:
        self.every = every
        self.within = within
        self.dropped = 0
        self._per_day = DAY // every
        self._limit = limit
        self._count = 0
        self._days: dict[int, dict[str, dict[str, array[int]]]] = {}
        # who → [place, first, last, end of day]: the stay that the next sample may prolong.
        self._open: dict[str, list[Any]] = {}
        # (day, place) → whose open stays are there, in the order in which they came.
        self._present: dict[tuple[int, str], dict[str, None]] = {}
        self._dates: dict[int, int] = {}
        # (day, place) → the same stays, of everybody in order.
        self._order: dict[tuple[int, str], Spells] = {}
        # How long each two were together, as far as stays are stored.
        self._company = Company(most_pairs)

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
            self._leave(who)
        self._enter(who, [place, tick, tick, (tick // self._per_day + 1) * self._per_day])

    def _enter(self, who: str, run: list[Any]) -> None:
        """Begin a stay; both maps have the open ones in the order in which they began."""
        if len(self._open) >= self._limit:
            self._leave(next(iter(self._open)))
            self.dropped += 1
        self._open[who] = run
        self._present.setdefault((run[1] // self._per_day, run[0]), {})[who] = None

    def _leave(self, who: str) -> None:
        """End the open stay of somebody."""
        place, first, _, _ = self._open.pop(who)
        there = self._present[first // self._per_day, place]
        del there[who]
        if not there:
            del self._present[first // self._per_day, place]

    def _store(self, who: str, place: str, first: int, last: int) -> None:
        day = first // self._per_day
        people = self._days.setdefault(day, {}).setdefault(place, {})
        stays = people.get(who)
        if stays is None:
            stays = people[who] = array("q")
        order = self._order.get((day, place))
        if order is None:
            order = self._order[day, place] = Spells([])
        if not stays or first > stays[-1] + 1:
            self._company.add(day, who, count_shared([(first, last)], order, who))
            stays.extend((first, last))
            order.add(first, last, who)
            self._count += 1
        else:
            self._company.add(day, who, count_shared(find_gaps(stays, first, last), order, who))
            before = len(stays)
            insert_stay(stays, first, last)
            self._count += (len(stays) - before) // 2
            others = [spell for spell in order.spells if spell[2] != who]
            mine = [(begin, end, who) for begin, end in pairs(stays)]
            self._order[day, place] = Spells(sorted(others + mine))
        while self._count > self._limit:
            self._forget(min(self._days))
            self.dropped += 1

    def _forget(self, day: int) -> None:
        self._company.forget(day)
        for place, people in self._days.pop(day).items():
            self._order.pop((day, place), None)
            self._count -= sum(len(stays) for stays in people.values()) // 2

    def _settle(self, now: int) -> int:
        """Forget what is past; return the first tick that counts."""
        since = (now - self.within) // self.every + 1
        oldest = since // self._per_day
        for day in [day for day in self._days if day < oldest]:
            self._forget(day)
        for spot in [spot for spot in self._present if spot[0] < oldest]:
            for who in self._present.pop(spot):
                del self._open[who]
        return since

    def visits(self, who: str, now: int) -> list[Stay]:
        """Return the stays of one person within the window, in order."""
        since = self._settle(now)
        found = [
            Stay(place, max(first, since), last)
            for (_, place), stays in self._whereabouts(who).items()
            for first, last in pairs(stays)
            if last >= since
        ]
        return sorted(found, key=lambda stay: (stay.first, stay.place))

    def meetings(self, who: str, now: int) -> list[Meeting]:
        """Return whom one person met within the window: each place and day apart."""
        since = self._settle(now)
        return sorted(
            meeting
            for (day, place), mine in self._whereabouts(who).items()
            for meeting in self._meetings(who, day, place, mine, since)
        )

    def company(self, who: str, now: int) -> Iterator[tuple[int, Iterable[tuple[str, int]]]]:
        """Yield the first tick of each day, and with whom one person was for how many ticks."""
        since = self._settle(now)
        days: dict[int, dict[str, array[int]]] = {}
        for (day, place), mine in self._whereabouts(who).items():
            days.setdefault(day, {})[place] = mine
        for day, places in sorted(days.items()):
            if day * self._per_day >= since and self._company.has(day):
                known = dict(self._company.of(day, who))
                for place, mine in places.items():
                    self._add_open(known, who, day, place, mine)
            else:
                # The window begins within the day, or there are no sums.
                known = {}
                for place, mine in places.items():
                    for it in self._meetings(who, day, place, mine, since):
                        known[it.other] = known.get(it.other, 0) + it.ticks
            yield day * self._per_day, known.items()

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
            fresh = self._unstored(who, people.get(who))
            for other, ticks in count_shared(fresh, order, who).items():
                known[other] = known.get(other, 0) + ticks
        stays = list(pairs(mine))
        for other in here:
            if other != who:
                ticks = count_common(self._unstored(other, people.get(other)), stays)
                if ticks:
                    known[other] = known.get(other, 0) + ticks

    def _unstored(self, who: str, stored: array[int] | None) -> list[tuple[int, int]]:
        """Return the ticks of a person's open stay that those stored of its place do not have."""
        _, first, last, _ = self._open[who]
        if stored is None or stored[-1] < first:
            return [(first, last)]
        return find_gaps(stored, first, last)

    def _meetings(
        self, who: str, day: int, place: str, mine: array[int], since: int
    ) -> Iterator[Meeting]:
        others = self._others(day, place, self._present.get((day, place), ()))
        for other, (first, ticks) in find_overlaps(mine, others, since).items():
            if other != who:
                yield Meeting(other, place, day, first, ticks)

    def _others(self, day: int, place: str, here: Collection[str]) -> Spells:
        """Return all stays at a place on a day in order; `here` are those whose is open."""
        gathered = self._order.get((day, place)) or Spells([])
        if not here:
            return gathered
        # Who is there now may have been there before: their stays are joined first.
        spells = [spell for spell in gathered.spells if spell[2] not in here]
        for who in here:
            stays = self._stays(who, day, place)
            spells += [(first, last, who) for first, last in pairs(stays)]
        return Spells(sorted(spells))

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
            insert_stay(stays, run[1], run[_LAST])
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
        return [days, [[who, *run] for who, run in self._open.items()], self._company.save()]

    def load(self, state: Any) -> None:
        """Take all stays back."""
        days, runs, company = state
        self._days = {
            day: {place: {who: array("q", it) for who, it in people} for place, people in places}
            for day, places in days
        }
        self._order = {
            (day, place): Spells(
                sorted(
                    (first, last, who) for who, it in people.items() for first, last in pairs(it)
                )
            )
            for day, places in self._days.items()
            for place, people in places.items()
        }
        self._open, self._present = {}, {}
        for who, *run in runs:
            self._enter(who, run)
        self._company.load(company)
        self._count = sum(
            len(stays) // 2
            for places in self._days.values()
            for people in places.values()
            for stays in people.values()
        )
