"""What each operation does, in plain Python: the reference for the other forms.

Rules that hold here:
- Arguments are values of the declared types; no argument is missing.
- An operation without a result raises MissingError with the reason.
- Nothing here is written for speed.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.lang import moments, text
from penstock.lang.limits import MAX_EXACT, MAX_INT, MAX_NUMERAL, MAX_STRING, MIN_INT
from penstock.lang.values import MissingError

# Shared with the Spark form: nothing in them means different things to Java and Python.
INT_PATTERN: Final = "-?[0-9]{1,19}"
DOUBLE_PATTERN: Final = "-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?"


def _int(number: int) -> int:
    if not MIN_INT <= number <= MAX_INT:
        raise MissingError("is beyond the range of int (64 bits)")
    return number


def _double(number: float) -> float:
    if not math.isfinite(number):
        raise MissingError("is beyond the range of double")
    return number


def _moment(value: datetime | None) -> datetime:
    if value is None:
        raise MissingError("is beyond the range of timestamp, or no timestamp")
    return value


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        raise MissingError("is beyond the range of timestamp") from None


def _duration(value: timedelta) -> timedelta:
    known = moments.as_duration(value)
    if known is None:
        raise MissingError("is beyond the range of duration")
    return known


def _multiply_duration(value: timedelta, by: int) -> timedelta:
    try:
        return _duration(value * by)
    except OverflowError:
        raise MissingError("is beyond the range of duration") from None


def _divide_ints(one: int, other: int) -> int:
    if other == 0:
        raise MissingError("divides by zero")
    quotient = abs(one) // abs(other)
    return _int(quotient if (one < 0) == (other < 0) else -quotient)


def _remainder(one: int, other: int) -> int:
    if other == 0:
        raise MissingError("divides by zero")
    rest = abs(one) % abs(other)
    return -rest if one < 0 else rest


def _divide_doubles(one: float, other: float) -> float:
    if other == 0:
        raise MissingError("divides by zero")
    return _double(one / other)


def _join(one: str, other: str) -> str:
    if len(one) + len(other) > MAX_STRING:
        raise MissingError(f"is longer than {MAX_STRING} characters")
    return one + other


def _to_double(number: int) -> float:
    if abs(number) > MAX_EXACT:
        raise MissingError("is an int without an exact double")
    return float(number)


def _truncate(number: float) -> int:
    return _int(math.trunc(number))


def _read_int(numeral: str) -> int:
    if not re.fullmatch(INT_PATTERN, numeral):
        raise MissingError("reads no int")
    return _int(int(numeral))


def _read_double(numeral: str) -> float:
    if len(numeral) > MAX_NUMERAL or not re.fullmatch(DOUBLE_PATTERN, numeral):
        raise MissingError("reads no double")
    return _double(float(numeral))


def _level(topic: str, index: int) -> str:
    levels = topic.split("/")
    if not 0 <= index < len(levels):
        raise MissingError("asks for a level that the topic does not have")
    return levels[index]


def find_element(items: Sequence[Any], index: int) -> Any:
    """Return the element at an index, counted from 0."""
    if not 0 <= index < len(items):
        raise MissingError("is beyond the end of the list")
    return items[index]


def find_entry(entries: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key."""
    if key not in entries:
        raise MissingError("has no such key")
    return entries[key]


def _day_of_year(moment: datetime) -> int:
    return (moment - datetime(moment.year, 1, 1, tzinfo=UTC)) // timedelta(days=1) + 1


def _count(**unit: int) -> Callable[[timedelta], int]:
    return lambda value: moments.count_units(value, timedelta(**unit))


SEMANTICS: Final[Mapping[str, Callable[..., Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "not": operator.not_,
    "neg_int": lambda a: _int(-a),
    "add_int": lambda a, b: _int(a + b),
    "sub_int": lambda a, b: _int(a - b),
    "mul_int": lambda a, b: _int(a * b),
    "div_int": _divide_ints,
    "mod_int": _remainder,
    "neg_double": operator.neg,
    "add_double": lambda a, b: _double(a + b),
    "sub_double": lambda a, b: _double(a - b),
    "mul_double": lambda a, b: _double(a * b),
    "div_double": _divide_doubles,
    "add_string": _join,
    "add_time": _shift,
    "sub_time": lambda a, b: _shift(a, -b),
    "sub_times": lambda a, b: _duration(a - b),
    "add_duration": lambda a, b: _duration(a + b),
    "sub_duration": lambda a, b: _duration(a - b),
    "neg_duration": operator.neg,
    "mul_duration": _multiply_duration,
    "to_double": _to_double,
    "int_from_double": _truncate,
    "int_from_string": _read_int,
    "int_from_timestamp": moments.to_seconds,
    "double_from_string": _read_double,
    "string_from_int": str,
    "string_from_bool": lambda a: "true" if a else "false",
    "timestamp_from_string": lambda a: _moment(moments.read_timestamp(a)),
    "timestamp_from_int": lambda a: _moment(moments.from_seconds(a)),
    "contains": operator.contains,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "lower": text.lower,
    "levels": lambda a: a.split("/"),
    "level": _level,
    "includes": lambda a, b: any(b in level for level in a.split("/")),
    "size_string": len,
    "size_list": len,
    "size_map": len,
    "in_map": lambda a, b: a in b,
    "keys": list,
    "year": lambda a: a.year,
    "month": lambda a: a.month,
    "day": lambda a: a.day,
    "hour": lambda a: a.hour,
    "minute": lambda a: a.minute,
    "second": lambda a: a.second,
    "millisecond": lambda a: a.microsecond // 1000,
    "dayOfWeek": lambda a: a.isoweekday(),
    "dayOfYear": _day_of_year,
    "days": _count(days=1),
    "hours": _count(hours=1),
    "minutes": _count(minutes=1),
    "seconds": _count(seconds=1),
    "milliseconds": _count(milliseconds=1),
}
