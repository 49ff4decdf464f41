"""Accumulators: one aggregate of one group, kept up to date value by value.

Rules that hold here:
- `add` and `expire` tell whether the result may have changed; that the same result now
  lasts longer is no change. Values arrive in any order of time (late data); `expire(since)`
  drops those at or before `since`.
- With `retain` off nothing expires, and no more is kept than the result needs.
- Sums are exact: a double is a whole number of the smallest double, so that the sum of a
  window is the same however the values came and went.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from typing_extensions import override

from penstock.cep.context import pack, unpack
from penstock.cep.program import Function

_SMALLEST: Final = 1074  # the smallest double is 2 to the power of -1074
_UNIT: Final = 1 << _SMALLEST
_MANY: Final = 32


Name: TypeAlias = Callable[[Any], str | None]
"""Returns whom a value names, of those who are to be forgotten."""


class Accumulator(ABC):
    """What every accumulator can do."""

    __slots__ = ()

    @abstractmethod
    def add(self, at: int, value: Any) -> bool:
        """Take a value of a time."""

    @abstractmethod
    def expire(self, since: int) -> bool:
        """Drop values at or before a time."""

    @abstractmethod
    def first_at(self) -> int | None:
        """Return the time of the value whose end changes the result next."""

    @abstractmethod
    def result(self) -> Any:
        """Return what the values come to; None where there are none."""

    @abstractmethod
    def size(self) -> int:
        """Return how many values are kept."""

    @abstractmethod
    def drop_oldest(self) -> None:
        """Make room."""

    @abstractmethod
    def forget(self, name_of: Name) -> set[str]:
        """Drop the values that name somebody; return whom."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state as JSON data."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Take the state back."""


class Extremum(Accumulator):
    """The greatest or least value: only those that can still become it are kept.

    Times rise and values fall (for the least: rise) from the first to the last. There are
    usually few, and lists of few are small: what has left stays in front until it is much.
    """

    __slots__ = ("_first", "_greatest", "_retain", "_times", "_values")

    def __init__(self, *, greatest: bool, retain: bool) -> None:
        self._greatest = greatest
        self._retain = retain
        self._first = 0
        self._times: list[int] = []
        self._values: list[Any] = []

    @override
    def add(self, at: int, value: Any) -> bool:
        times, values, first = self._times, self._values, self._first
        last = len(values) - 1
        if last < first:
            times.append(at)
            values.append(value)
            return True
        if not self._retain:
            before = values[first]
            if value > before if self._greatest else value < before:
                values[first] = value
                return True
            return False
        latest = values[last]
        if at < times[last]:
            return self._insert(at, value)
        # The usual case first: it does not outdo the last one, and so none before it.
        if value < latest if self._greatest else value > latest:
            times.append(at)
            values.append(value)
            return False
        before = values[first]
        place = last
        if self._greatest:
            while place > first and values[place - 1] <= value:
                place -= 1
        else:
            while place > first and values[place - 1] >= value:
                place -= 1
        times[place] = at
        values[place] = value
        if place < last:
            del times[place + 1 :], values[place + 1 :]
        return place == first and bool(value != before)

    def _insert(self, at: int, value: Any) -> bool:
        """Take a value that came late: it counts only where no later one outdoes it."""
        times, values, first = self._times, self._values, self._first
        place = bisect_right(times, at, first)
        later = values[place]
        if later >= value if self._greatest else later <= value:
            return False
        start = place
        while start > first and (
            values[start - 1] <= value if self._greatest else values[start - 1] >= value
        ):
            start -= 1
        times[start:place] = [at]
        values[start:place] = [value]
        return start == first

    @override
    def expire(self, since: int) -> bool:
        times, start = self._times, self._first
        end = start
        while end < len(times) and times[end] <= since:
            end += 1
        self._first = end
        if end > _MANY and end * 2 > len(times):
            del times[:end], self._values[:end]
            self._first = 0
        return end > start

    @override
    def first_at(self) -> int | None:
        return self._times[self._first] if self._first < len(self._times) else None

    @override
    def result(self) -> Any:
        return self._values[self._first] if self._first < len(self._values) else None

    @override
    def size(self) -> int:
        return len(self._times) - self._first

    @override
    def drop_oldest(self) -> None:
        self._first += 1

    @override
    def forget(self, name_of: Name) -> set[str]:
        held = list(zip(self._times, self._values, strict=True))[self._first :]
        kept = [it for it in held if name_of(it[1]) is None]
        self._first = 0
        self._times, self._values = [at for at, _ in kept], [value for _, value in kept]
        return {name for _, value in held if (name := name_of(value)) is not None}

    @override
    def save(self) -> Any:
        return [self._times[self._first :], pack(self._values[self._first :])]

    @override
    def load(self, state: Any) -> None:
        self._first = 0
        self._times, self._values = list(state[0]), unpack(state[1])


class _Retained(Accumulator):
    """Keeps values in the order of their times."""

    __slots__ = ("_kept", "_retain", "_serial")

    def __init__(self, *, retain: bool) -> None:
        self._retain = retain
        self._serial = 0
        self._kept: deque[tuple[int, int, Any]] = deque()

    def _take(self, value: Any) -> None:
        """Count a value in, where the result is kept up incrementally."""

    def _leave(self, value: Any) -> None:
        """Count a value out."""

    @override
    def add(self, at: int, value: Any) -> bool:
        self._take(value)
        if self._retain:
            self._serial += 1
            entry = (at, self._serial, value)
            if not self._kept or self._kept[-1][0] <= at:
                self._kept.append(entry)
            else:
                # The serial number tells equal times apart: values are never compared.
                kept = list(self._kept)
                insort(kept, entry)
                self._kept = deque(kept)
        return True

    @override
    def expire(self, since: int) -> bool:
        changed = False
        while self._kept and self._kept[0][0] <= since:
            self._leave(self._kept.popleft()[2])
            changed = True
        return changed

    @override
    def first_at(self) -> int | None:
        return self._kept[0][0] if self._kept else None

    @override
    def size(self) -> int:
        return len(self._kept)

    @override
    def drop_oldest(self) -> None:
        self._leave(self._kept.popleft()[2])

    @override
    def forget(self, name_of: Name) -> set[str]:
        found, kept = set[str](), deque[tuple[int, int, Any]]()
        for entry in self._kept:
            name = name_of(entry[2])
            if name is None:
                kept.append(entry)
            else:
                found.add(name)
                self._leave(entry[2])
        self._kept = kept
        return found

    def _save_kept(self) -> Any:
        return [[at, pack(value)] for at, _, value in self._kept]

    def _load_kept(self, state: Any) -> None:
        self._kept = deque(
            (at, serial, unpack(value)) for serial, (at, value) in enumerate(state, 1)
        )
        self._serial = len(self._kept)


def _units(value: Any) -> int:
    """Return a number in units of the smallest double."""
    numerator, denominator = value.as_integer_ratio()
    return int(numerator * (_UNIT // denominator))


class CountSum(_Retained):
    """How many values there are, and what they sum up to."""

    __slots__ = ("_count", "_function", "_sum", "_whole")

    def __init__(self, function: Function, *, retain: bool, whole: bool) -> None:
        super().__init__(retain=retain)
        self._function = function
        self._whole = whole
        self._count = 0
        self._sum = 0

    def _take(self, value: Any) -> None:
        self._count += 1
        if self._function != "count":
            self._sum += value if self._whole else _units(value)

    def _leave(self, value: Any) -> None:
        self._count -= 1
        if self._function != "count":
            self._sum -= value if self._whole else _units(value)

    @override
    def result(self) -> Any:
        if self._function == "count":
            return self._count
        if not self._count:
            return None
        if self._whole and self._function == "sum":
            return self._sum
        divisor = self._count if self._function == "avg" else 1
        try:
            return self._sum / (divisor if self._whole else divisor * _UNIT)
        except OverflowError:
            # More than a double holds: nobody can tell, and what compares it does not hold.
            return None

    @override
    def save(self) -> Any:
        return [self._count, str(self._sum), self._save_kept()]

    @override
    def load(self, state: Any) -> None:
        self._count, self._sum = state[0], int(state[1])
        self._load_kept(state[2])


class Distinct(_Retained):
    """How many different values there are."""

    __slots__ = ("_times",)

    def __init__(self, *, retain: bool) -> None:
        super().__init__(retain=retain)
        self._times: Counter[Any] = Counter()

    def _take(self, value: Any) -> None:
        self._times[value] += 1

    def _leave(self, value: Any) -> None:
        self._times[value] -= 1
        if not self._times[value]:
            del self._times[value]

    @override
    def result(self) -> Any:
        return len(self._times)

    @override
    def size(self) -> int:
        return max(len(self._kept), len(self._times))

    @override
    def drop_oldest(self) -> None:
        if self._kept:
            super().drop_oldest()
        else:
            del self._times[next(iter(self._times))]

    @override
    def forget(self, name_of: Name) -> set[str]:
        found = super().forget(name_of)
        # Where nothing is retained, they are counted all the same.
        for value in [it for it in self._times if name_of(it) is not None]:
            found.add(str(value))
            del self._times[value]
        return found

    @override
    def save(self) -> Any:
        return [[[pack(value), times] for value, times in self._times.items()], self._save_kept()]

    @override
    def load(self, state: Any) -> None:
        self._times = Counter({unpack(value): times for value, times in state[0]})
        self._load_kept(state[1])


class FirstLast(_Retained):
    """The first or last value, by time; of one time by arrival."""

    __slots__ = ("_at", "_last", "_value")

    def __init__(self, *, last: bool, retain: bool) -> None:
        super().__init__(retain=retain)
        self._last = last
        self._at: int | None = None
        self._value: Any = None

    @override
    def add(self, at: int, value: Any) -> bool:
        if self._retain:
            return super().add(at, value)
        if self._at is None or (at >= self._at if self._last else at < self._at):
            self._at, self._value = at, value
            return True
        return False

    @override
    def result(self) -> Any:
        if not self._retain:
            return self._value
        return self._kept[-1 if self._last else 0][2] if self._kept else None

    @override
    def forget(self, name_of: Name) -> set[str]:
        found = super().forget(name_of)
        name = None if self._at is None else name_of(self._value)
        if name is not None:
            self._at = self._value = None
            found.add(name)
        return found

    @override
    def save(self) -> Any:
        return [self._at, pack(self._value), self._save_kept()]

    @override
    def load(self, state: Any) -> None:
        self._at, self._value = state[0], unpack(state[1])
        self._load_kept(state[2])


class LastN(_Retained):
    """Any aggregate of the last N values, in the order of their times: computed anew."""

    __slots__ = ("_function", "_limit", "_whole")

    def __init__(self, function: Function, limit: int, *, whole: bool) -> None:
        super().__init__(retain=True)
        self._function = function
        self._limit = limit
        self._whole = whole

    @override
    def add(self, at: int, value: Any) -> bool:
        super().add(at, value)
        if len(self._kept) > self._limit:
            self._kept.popleft()
        return True

    @override
    def result(self) -> Any:
        accumulator = make_accumulator(self._function, retain=False, whole=self._whole)
        for at, _, value in self._kept:
            accumulator.add(at, value)
        return accumulator.result()

    @override
    def save(self) -> Any:
        return self._save_kept()

    @override
    def load(self, state: Any) -> None:
        self._load_kept(state)


def make_accumulator(
    function: Function, *, retain: bool, whole: bool, last_n: int | None = None
) -> Accumulator:
    """Return an accumulator; `whole`: values are ints; `last_n`: of the last so many only."""
    if last_n is not None:
        return LastN(function, last_n, whole=whole)
    match function:
        case "min" | "max":
            return Extremum(greatest=function == "max", retain=retain)
        case "count" | "sum" | "avg":
            return CountSum(function, retain=retain, whole=whole)
        case "distinct":
            return Distinct(retain=retain)
        case "first" | "last":
            return FirstLast(last=function == "last", retain=retain)
