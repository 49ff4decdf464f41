"""What generated Python functions call; None is missing throughout.

Rules that hold here:
- The checks of values follow `values.conform`, without reasons and for speed; they are
  written apart from it, so that the tests compare two things and not one.
- Whatever type a value from outside has, nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.lang.errors import (
    MAX_DURATION,
    MAX_EXACT,
    MAX_INT,
    MAX_NUMERAL,
    MAX_STRING,
    MIN_INT,
)
from penstock.lang.scalars import (
    DOUBLE_PATTERN,
    EPOCH,
    INT_PATTERN,
    from_seconds,
    includes,
    is_text,
    lower,
    read_date,
    read_moment,
    read_timestamp,
)
from penstock.lang.types import ListOf, MapOf, RecordType, Type
from penstock.lang.values import MissingError, TextList, conform, export

Check = Callable[[Any], Any]

_SECOND: Final = timedelta(seconds=1)
_INT: Final = re.compile(INT_PATTERN)
_DOUBLE: Final = re.compile(DOUBLE_PATTERN)
_TEXT_ONLY: Final = frozenset({str})
LISTS: Final = frozenset({list, tuple, set, frozenset, TextList})


# Values from outside


def _as_bool(value: Any) -> bool | None:
    return value if value is True or value is False else None


def _as_int(value: Any) -> int | None:
    return value if type(value) is int and MIN_INT <= value <= MAX_INT else None


def _as_double(value: Any) -> float | None:
    if type(value) is float:
        return value if value - value == 0.0 else None
    if type(value) is int and -MAX_EXACT <= value <= MAX_EXACT:
        return float(value)
    return None


def _as_text(value: Any) -> str | None:
    return value if type(value) is str and is_text(value) else None


def _as_timestamp(value: Any) -> datetime | None:
    if type(value) is not datetime or value.tzinfo is None:
        return None
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


def _as_duration(value: Any) -> timedelta | None:
    return value if type(value) is timedelta and -MAX_DURATION <= value <= MAX_DURATION else None


def _as_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple, set, frozenset)) else None


def _as_map(value: Any) -> Any:
    return value if isinstance(value, Mapping) else None


def get(value: Any, name: str) -> Any:
    """Return a field of what should be a record, as it is."""
    return value.get(name) if isinstance(value, Mapping) else None


CHECKS: Final[Mapping[str, Check]] = {
    "bool": _as_bool,
    "int": _as_int,
    "double": _as_double,
    "string": _as_text,
    "timestamp": _as_timestamp,
    "duration": _as_duration,
}


def find_check(kind: Type) -> Check:
    """Return the check for values of a type."""
    match kind:
        case ListOf():
            return _as_list
        case MapOf() | RecordType():
            return _as_map
        case _:
            return CHECKS[kind.name]


def finish(value: Any, kind: Type) -> Any:
    """Return a list, map or record as plain data."""
    if value is None:
        return None
    try:
        return export(conform(value, kind), kind)
    except MissingError:
        return None


# Lists


def absent(texts: Iterable[Any]) -> bool | None:
    """Answer `in` for a text that was not found: False if all are texts, else None."""
    if not _TEXT_ONLY.issuperset(map(type, texts)):
        return None
    return False if is_text("".join(texts)) else None


def member(item: Any, items: Iterable[Any], check: Check) -> bool | None:
    """Answer `in` for elements from outside."""
    found: bool | None = False
    for candidate in items:
        value = check(candidate)
        if value is None:
            found = None
        elif value == item:
            return True
    return found


def member_made(item: Any, items: Sequence[Any]) -> bool | None:
    """Answer `in` for elements that an expression made: values, or None."""
    if item in items:
        return True
    return None if None in items else False


def element(items: Any, index: int, check: Check) -> Any:
    """Return the element at an index, as it is; a set stands in ascending order."""
    if isinstance(items, (set, frozenset)):
        known = [value for value in map(check, items) if value is not None]
        items = sorted(known)
    return items[index] if 0 <= index < len(items) else None


# Lists as sets


def _as_set(items: Any, check: Check) -> frozenset[Any] | None:
    if type(items) is TextList:
        return items.members
    found = frozenset(map(check, items))
    return None if None in found else found


def _sort_set(found: Iterable[Any]) -> list[Any]:
    # Of doubles 0.0 is the one zero.
    return [0.0 if type(it) is float and it == 0.0 else it for it in sorted(found)]


def _subset(one: Any, other: Any, check: Check) -> bool | None:
    left, right = _as_set(one, check), _as_set(other, check)
    return None if left is None or right is None else left <= right


def _intersect(one: Any, other: Any, check: Check) -> list[Any] | None:
    left, right = _as_set(one, check), _as_set(other, check)
    return None if left is None or right is None else _sort_set(left & right)


def _union(one: Any, other: Any, check: Check) -> list[Any] | None:
    left, right = _as_set(one, check), _as_set(other, check)
    return None if left is None or right is None else _sort_set(left | right)


def _minus(one: Any, other: Any, check: Check) -> list[Any] | None:
    left, right = _as_set(one, check), _as_set(other, check)
    return None if left is None or right is None else _sort_set(left - right)


# Operations


def _div_int(one: int, other: int) -> int | None:
    if other == 0:
        return None
    quotient = one // other
    if quotient < 0 and quotient * other != one:
        quotient += 1
    return quotient if quotient <= MAX_INT else None


def _mod_int(one: int, other: int) -> int | None:
    if other == 0:
        return None
    rest = one % other
    return rest - other if rest and (one < 0) != (other < 0) else rest


def _add_string(one: str, other: str) -> str | None:
    return one + other if len(one) + len(other) <= MAX_STRING else None


def _add_time(moment: datetime, by: timedelta) -> datetime | None:
    try:
        return moment + by
    except OverflowError:
        return None


def _sub_time(moment: datetime, by: timedelta) -> datetime | None:
    try:
        return moment - by
    except OverflowError:
        return None


def _mul_duration(value: timedelta, by: int) -> timedelta | None:
    try:
        return _as_duration(value * by)
    except OverflowError:
        return None


def _to_double(value: int) -> float | None:
    return float(value) if -MAX_EXACT <= value <= MAX_EXACT else None


def _int_from_double(value: float) -> int | None:
    return _as_int(int(value))


def _int_from_string(value: str) -> int | None:
    return _as_int(int(value)) if _INT.fullmatch(value) else None


def _int_from_timestamp(value: datetime) -> int:
    return (value - EPOCH) // _SECOND


def _double_from_string(value: str) -> float | None:
    if len(value) > MAX_NUMERAL or not _DOUBLE.fullmatch(value):
        return None
    return _as_double(float(value))


def _string_from_bool(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"


def _level(topic: str, index: int) -> str | None:
    levels = topic.split("/")
    return levels[index] if 0 <= index < len(levels) else None


def _day_of_year(value: datetime) -> int:
    return value.timetuple().tm_yday


def _count_units(value: timedelta, unit: timedelta) -> int:
    return value // unit if value.days >= 0 else -(-value // unit)


_CALLED: Final = (
    *(_as_double, _as_duration, _as_list, _as_map, _as_timestamp, get, finish, is_text),
    *(absent, member, member_made, element, includes, lower, _level),
    *(_div_int, _mod_int, _add_string, _add_time, _sub_time, _mul_duration),
    *(_to_double, _int_from_double, _int_from_string, _int_from_timestamp, _double_from_string),
    *(_string_from_bool, read_timestamp, from_seconds, _day_of_year, _count_units),
    *(_subset, _intersect, _union, _minus, read_moment, read_date),
)
NAMES: Final[Mapping[str, Any]] = {
    **{function.__name__.lstrip("_"): function for function in _CALLED},
    "datetime": datetime,
    "timedelta": timedelta,
    "UTC": UTC,
    "LISTS": LISTS,
    "TextList": TextList,
}
