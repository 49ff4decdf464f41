"""What the operators of one engine share: rows, limits, clock, timers, and the form of saved state.

Rules that hold here:
- A row never changes, but for `alive`: a row of a relation dies when it no longer holds. Every
  row has a number of its own, in the order of creation; snapshots refer to rows by it.
- A row that lacks part of its group's key belongs to no group.
- Timers that may cause a transition are kept apart from all others, so that `next_deadline`
  says until when the situations are certain.
- A limit that is reached makes room by dropping the oldest, and is counted.
- State is saved as JSON, which has no moments and no durations: they are written as {"$t":
  microseconds since 1970} and {"$d": microseconds}. No other map of an event has such a key alone.
- Records of steps are compact JSON; snapshots are compressed.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, Final, TypeAlias

from penstock.cep.program import Assignment
from penstock.errors import PenstockError
from penstock.lang import Expression
from penstock.lang.scalars import EPOCH, MICROSECOND
from penstock.lang.tree import find_path

Values: TypeAlias = dict[str, Any]
Key: TypeAlias = Any
"""What tells groups apart: the value of one attribute, or a tuple of several."""

FIELD_OF_ROOT: Final = 2
Timer: TypeAlias = tuple[int, int, str, Key]
"""Time, operator, the group as text (which has an order whatever it is made of), the group."""

NEVER: Final = 1 << 62
HOLDS: Final = -1
"""Stands for the operator of timers of holds: of one moment they come first."""
DURATIONS: Final = NEVER
"""Stands for the operator of longest durations: of one moment they come last."""
_SPARE: Final = 64


class Row:
    """Something that happened (`at`, in milliseconds since 1970) or that holds since then."""

    __slots__ = ("alive", "at", "uid", "values")

    def __init__(self, uid: int, at: int, values: Values) -> None:
        self.uid = uid
        self.at = at
        self.values = values
        self.alive = True

    def __repr__(self) -> str:
        return f"Row({self.uid}, {self.at}, {self.values})"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine keeps at most."""

    keys: int = 200_000  # groups of one operator
    rows: int = 1_000  # rows of a group on one side of a join
    samples: int = 200_000  # values of a group that one aggregate keeps
    matches: int = 1_000  # matches of a group that a join holds or finds at once
    stays: int = 4_000_000  # stays that visits keep
    pairs: int = 25_000_000  # sums of what two people share on a day (8 bytes each)
    subjects: int = 1_000_000  # subjects of a scenario in some situation
    ids: int = 100_000  # identifiers that tell repeated packets and events
    topics: int = 50_000  # topics whose event types are remembered
    rounds: int = 16  # rounds of requests that one step may cause


@dataclass(slots=True)
class EngineContext:
    """What the operators of one engine share."""

    limits: EngineLimits = field(default_factory=EngineLimits)
    now: int = 0
    uid: int = 0
    version: int = 0  # counts the changes of situations
    changed: dict[str, int] = field(default_factory=dict)  # subject → version of its last change
    floor: int = 0  # the version when that was last forgotten
    counts: Counter[str] = field(default_factory=Counter)
    transition_operators: frozenset[int] = frozenset()
    """Operators whose rows may lead to an event that causes a transition of some scenario."""
    next_timer: int = NEVER
    """When the next timer fires."""
    _timers: list[Timer] = field(default_factory=list)
    _transition_timers: list[Timer] = field(default_factory=list)
    _holds: list[Timer] = field(default_factory=list)
    # Timers of longest durations are cancelled in `_ends`; the first of the heap is never one
    # of those, and those within are dropped when they are more than the others.
    _durations: list[Timer] = field(default_factory=list)
    _ends: dict[tuple[str, str], int] = field(default_factory=dict)

    def row(self, at: int, values: Values) -> Row:
        """Return a new row."""
        self.uid += 1
        return Row(self.uid, at, values)

    def note_change(self, subject: str) -> None:
        """Note that a subject's situation changed: what led nowhere may lead somewhere now."""
        self.version += 1
        self.changed[subject] = self.version
        if len(self.changed) > self.limits.keys:
            self.changed.clear()
            self.floor = self.version

    def schedule(self, at: int, index: int, key: Key) -> None:
        """Set a timer: wake an operator for a group at a time."""
        transits = index in self.transition_operators
        timers = self._transition_timers if transits else self._timers
        heappush(timers, (at, index, repr(key), key))
        self.next_timer = min(self.next_timer, at)

    def schedule_hold(self, at: int, case: tuple[str, str]) -> None:
        """Set the timer that ends a hold of a scenario and its subject."""
        heappush(self._holds, (at, HOLDS, repr(case), case))
        self.next_timer = min(self.next_timer, at)

    def cancel_hold(self, at: int, case: tuple[str, str]) -> None:
        """Cancel the timer of a hold. There are few of them: people make them."""
        self._holds.remove((at, HOLDS, repr(case), case))
        heapify(self._holds)
        self.next_timer = self._find_next()

    def schedule_end(self, at: int, case: tuple[str, str]) -> None:
        """Set the timer of a situation's longest duration for a scenario and its subject."""
        self._ends[case] = at
        if len(self._durations) > 2 * len(self._ends) + _SPARE:
            self._durations = [it for it in self._durations if self._ends.get(it[3]) == it[0]]
            heapify(self._durations)
        heappush(self._durations, (at, DURATIONS, repr(case), case))
        self.next_timer = min(self.next_timer, at)

    def cancel_end(self, case: tuple[str, str]) -> None:
        """Cancel the timer of a longest duration, if there is one."""
        if self._ends.pop(case, None) is not None:
            self._drop_cancelled()
            self.next_timer = self._find_next()

    def _drop_cancelled(self) -> None:
        timers = self._durations
        while timers and self._ends.get(timers[0][3]) != timers[0][0]:
            heappop(timers)

    @property
    def next_deadline(self) -> int:
        """When the next timer fires that may cause a transition."""
        first = min(_first(self._transition_timers), _first(self._holds))
        return min(first, _first(self._durations))

    def _find_next(self) -> int:
        return min(_first(self._timers), self.next_deadline)

    def pop_due(self, at: int) -> list[tuple[int, Key]]:
        """Remove the timers that are due; return whom they wake, in order, each once."""
        due: list[Timer] = []
        for timers in (self._timers, self._transition_timers, self._holds):
            while timers and timers[0][0] <= at:
                due.append(heappop(timers))
        while self._durations and self._durations[0][0] <= at:
            due.append(heappop(self._durations))
            del self._ends[due[-1][3]]
            self._drop_cancelled()
        self.next_timer = self._find_next()
        due.sort(key=itemgetter(0, 1, 2))
        return list(dict.fromkeys((index, key) for _, index, _, key in due))


def _first(timers: list[Timer]) -> int:
    return timers[0][0] if timers else NEVER


def key_reader(by: tuple[str, ...]) -> Callable[[Values], Key]:
    """Return what reads the group of a row; None where part of it is missing."""
    if len(by) == 1:
        (name,) = by
        return lambda values: values[name]

    def read(values: Values) -> Key:
        key = tuple([values[name] for name in by])
        return None if None in key else key

    return read


def evaluator(expression: Expression) -> Callable[..., Any]:
    """Return the fast form of an expression over rows.

    The attributes of rows were checked when the rows were made, so that a plain attribute
    of a single row needs no further look.
    """
    path = find_path(expression.tree)
    if path is not None and len(path) == FIELD_OF_ROOT and len(expression.scope.names) == 1:
        name = path[1]
        return lambda values: values.get(name)
    return expression.function


def shaper(assignments: Sequence[Assignment]) -> Callable[..., Values]:
    """Return what makes the values of a row from rows."""
    names = [assignment.name for assignment in assignments]
    paths = [find_path(assignment.value.tree) for assignment in assignments]
    plain = [path[1] for path in paths if path is not None and len(path) == FIELD_OF_ROOT]
    single = all(len(assignment.value.scope.names) == 1 for assignment in assignments)
    if single and 1 < len(plain) == len(names):
        take = itemgetter(*plain)
        return lambda values: dict(zip(names, take(values), strict=True))
    parts = [(assignment.name, evaluator(assignment.value)) for assignment in assignments]
    if len(parts) == 1:
        ((only, function),) = parts
        return lambda *rows: {only: function(*rows)}
    return lambda *rows: {name: function(*rows) for name, function in parts}


@dataclass(slots=True)
class ErasedPeople:
    """People whose events are to be forgotten, and the attributes that name people.

    A text elsewhere says nothing: somebody may be called as a room is. All are looked for at
    once: that costs no more for many than for one.
    """

    names: frozenset[str]
    attributes: frozenset[str]
    found: Counter[str] = field(default_factory=Counter)
    """How many groups and rows were about each of them."""

    def name(self, value: Any) -> str | None:
        """Return whom the value of such an attribute names, of these people."""
        text = str(value) if type(value) in {str, int} else None
        return text if text in self.names else None

    def has_key(self, by: tuple[str, ...], key: Key) -> bool:
        """Say whether a group is about one of them, also where it is about others, too."""
        parts = (key,) if len(by) == 1 else key
        return self.has_row(dict(zip(by, parts, strict=True)))

    def has_row(self, values: Values) -> bool:
        """Say whether a row is about one of them."""
        for attribute in self.attributes & values.keys():
            name = self.name(values[attribute])
            if name is not None:
                self.found[name] += 1
                return True
        return False


_TIME: Final = "$t"
_DURATION: Final = "$d"


class StateError(PenstockError):
    """A saved state or a record of a step cannot be taken back."""


def pack(value: Any) -> Any:
    """Return a value as JSON data."""
    if isinstance(value, datetime):
        return {_TIME: (value - EPOCH) // MICROSECOND}
    if isinstance(value, timedelta):
        return {_DURATION: value // MICROSECOND}
    if isinstance(value, dict):
        return {name: pack(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(pack(item) for item in value)
    return value


def unpack(value: Any) -> Any:
    """Return the value that JSON data stands for."""
    if isinstance(value, dict):
        if len(value) == 1:
            if _TIME in value:
                return EPOCH + value[_TIME] * MICROSECOND
            if _DURATION in value:
                return value[_DURATION] * MICROSECOND
        return {name: unpack(item) for name, item in value.items()}
    if isinstance(value, list):
        return [unpack(item) for item in value]
    return value


def pack_key(key: Key) -> Any:
    """Return a group as JSON data; a tuple stays apart from a list."""
    return {"": [pack(part) for part in key]} if isinstance(key, tuple) else pack(key)


def unpack_key(data: Any) -> Key:
    """Return the group that JSON data stands for."""
    if isinstance(data, dict) and "" in data:
        return tuple(unpack(part) for part in data[""])
    return unpack(data)


def pack_row(row: Row) -> Any:
    """Return a row as JSON data."""
    return [row.uid, row.at, pack(row.values)]


def unpack_row(data: Any) -> Row:
    """Return the row that JSON data stands for."""
    uid, at, values = data
    return Row(uid, at, unpack(values))


def _pack_strange(value: Any) -> Any:
    """Return what JSON does not have as JSON data, as `pack` does."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(pack, value))
    packed = pack(value)
    if packed is value:
        raise TypeError(f"{type(value).__name__} is not a value of events")
    return packed


# Made once, since making one takes as long as writing a record.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_pack_strange).encode


def encode_record(data: Any) -> bytes:
    """Return JSON data as compact text; values need not be packed before."""
    return _encode(data).encode()


def decode_record(text: bytes) -> Any:
    """Return the JSON data of a text."""
    try:
        return json.loads(text)
    except ValueError:
        raise StateError(
            "a record of a step is not JSON", fix="go back to an earlier snapshot"
        ) from None


def encode_snapshot(data: Any) -> bytes:
    """Return JSON data as compressed text."""
    return zlib.compress(encode_record(data), 1)


def decode_snapshot(data: bytes) -> Any:
    """Return the JSON data of compressed text."""
    try:
        return decode_record(zlib.decompress(data))
    except zlib.error:
        raise StateError(
            "a snapshot of events is damaged", fix="go back to an earlier snapshot"
        ) from None
