"""How long each two people were together, day by day: sums that grow as stays end.

    day → who → [numbers of the others, in order] + [ticks with each of them]

Rules that hold here:
- Both of a pair have the sum, so that a person's company is found without looking at anybody
  else. A sum takes eight bytes; numbers are given for each day, and forgotten with it.
- A day with too many pairs has no sums from then on: whoever asks is told so, and has to find
  them in the stays.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from sys import byteorder
from typing import Any, Final

_KIND: Final = "I"


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
