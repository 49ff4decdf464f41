"""What each operation is in Spark.

Rules that hold here:
- Arguments are in the form of `values`; NULL goes in and comes out as missing.
- Every operation of the language stands in one of the tables, or with the compiler
  where it needs the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang.errors import MAX_EXACT, MAX_NUMERAL, MAX_STRING, MIN_INT
from penstock.lang.scalars import DOUBLE_PATTERN, INT_PATTERN, LOWER, TIMESTAMP_PATTERN
from penstock.lang.spark.values import (
    DAY,
    HOUR,
    INFINITY,
    MICROSECONDS,
    MIN_TIME,
    MINUTE,
    add,
    as_moment,
    as_span,
    bigint,
    bring_in,
    divide,
    multiply,
    solidify,
    within,
)
from penstock.lang.types import BOOL, DOUBLE, DURATION, INT, STRING, TIMESTAMP, Scalar, Type


def _compare(sign: str) -> Callable[[Column, Column], Column]:
    return lambda a, b: getattr(a, sign)(b)


def _anchored(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


def _divide_ints(a: Column, b: Column) -> Column:
    # Decimals of 19 digits hold every BIGINT. The quotient keeps 19 decimals: enough that
    # rounding never reaches the next whole number before the cast cuts the decimals off.
    quotient = F.try_divide(a.cast("decimal(19,0)"), b.cast("decimal(19,0)"))
    return quotient.try_cast("bigint")


def read_double(text: Column) -> Column:
    """Return the double that a text reads; it may be infinite."""
    numeral = (F.length(text) <= MAX_NUMERAL) & text.rlike(_anchored(DOUBLE_PATTERN))
    return F.when(numeral, text.try_cast("double"))


def _read_timestamp(text: Column) -> Column:
    moment = F.unix_micros(text.try_cast("timestamp"))
    return as_moment(F.when(text.rlike(_anchored(TIMESTAMP_PATTERN)), moment))


def _lower(text: Column) -> Column:
    capital = "".join(map(chr, LOWER))
    small = "".join(map(chr, LOWER.values()))
    ascii_only = F.length(text) == F.octet_length(text)
    return F.when(ascii_only, F.lower(text)).otherwise(F.translate(text, capital, small))


def _includes(topic: Column, word: Column) -> Column:
    never = F.when(topic.isNotNull(), F.lit(col=False))
    return F.when(F.contains(word, F.lit("/")), never).otherwise(F.contains(topic, word))


def _level(topic: Column, index: Column) -> Column:
    return F.get(F.split(topic, "/"), index.try_cast("int"))


def _part(unit: int, of: int) -> Callable[[Column], Column]:
    """Return one part of a moment, counted from the year 1 so that nothing is negative."""
    return lambda a: divide(a - bigint(MIN_TIME), unit) % bigint(of)


def _date_part(read: Callable[[Column], Column]) -> Callable[[Column], Column]:
    days = MIN_TIME // DAY

    def part(a: Column) -> Column:
        day = divide(a - bigint(MIN_TIME), DAY).cast("int")
        return read(F.date_add(F.date_add(F.lit(date(1970, 1, 1)), days), day)).cast("bigint")

    return part


# Operations that use each argument once, or are small enough to repeat it.
ONCE: Final[Mapping[str, Callable[..., Column]]] = {
    "eq": _compare("__eq__"),
    "ne": _compare("__ne__"),
    "lt": _compare("__lt__"),
    "le": _compare("__le__"),
    "gt": _compare("__gt__"),
    "ge": _compare("__ge__"),
    "not": lambda a: ~a,
    "neg_int": lambda a: F.try_subtract(bigint(0), a),
    "add_int": add,
    "sub_int": F.try_subtract,
    "mul_int": multiply,
    "div_int": _divide_ints,
    "mod_int": F.try_mod,
    "add_time": lambda a, b: as_moment(add(a, b)),
    "sub_time": lambda a, b: as_moment(F.try_subtract(a, b)),
    "sub_times": F.try_subtract,
    "add_duration": lambda a, b: as_span(add(a, b)),
    "sub_duration": lambda a, b: as_span(F.try_subtract(a, b)),
    "neg_duration": lambda a: -a,
    "mul_duration": lambda a, b: as_span(multiply(a, b)),
    "to_double": lambda a: within(a, -MAX_EXACT, MAX_EXACT).cast("double"),
    "int_from_timestamp": lambda a: (
        divide(a - bigint(MIN_TIME), MICROSECONDS) + bigint(MIN_TIME // MICROSECONDS)
    ),
    "string_from_int": lambda a: a.cast("string"),
    "string_from_bool": lambda a: a.cast("string"),
    "timestamp_from_int": lambda a: as_moment(multiply(a, bigint(MICROSECONDS))),
    "contains": F.contains,
    "starts_with": F.startswith,
    "ends_with": F.endswith,
    "levels": lambda a: F.split(a, "/"),
    "level": _level,
    "size_string": lambda a: F.length(a).cast("bigint"),
    "size_list": lambda a: F.array_size(a).cast("bigint"),
    "size_map": lambda a: F.array_size(F.map_keys(a)).cast("bigint"),
    "in_map": lambda a, b: F.map_contains_key(b, a),
    "keys": F.map_keys,
    "year": _date_part(F.year),
    "month": _date_part(F.month),
    "day": _date_part(F.dayofmonth),
    "dayOfYear": _date_part(F.dayofyear),
    "dayOfWeek": lambda a: _part(DAY, 7)(a) + bigint(1),  # the year 1 began on a Monday
    "hour": _part(HOUR, 24),
    "minute": _part(MINUTE, 60),
    "second": _part(MICROSECONDS, 60),
    "millisecond": _part(1000, 1000),
    "days": lambda a: divide(a, DAY),
    "hours": lambda a: divide(a, HOUR),
    "minutes": lambda a: divide(a, MINUTE),
    "seconds": lambda a: divide(a, MICROSECONDS),
    "milliseconds": lambda a: divide(a, 1000),
}

# Operations that use an argument several times.
REPEATED: Final[Mapping[str, Callable[..., Column]]] = {
    "add_string": lambda a, b: F.when(F.length(a) + F.length(b) <= MAX_STRING, F.concat(a, b)),
    "int_from_double": lambda a: F.when(
        (a >= float(MIN_INT)) & (a < -float(MIN_INT)), a.cast("bigint")
    ),
    "int_from_string": lambda a: F.when(a.rlike(_anchored(INT_PATTERN)), a.try_cast("bigint")),
    "timestamp_from_string": _read_timestamp,
    "lower": _lower,
    "includes": _includes,
}

# Operations whose double may come out infinite or NaN, and takes such.
LOOSE: Final[Mapping[str, Callable[..., Column]]] = {
    "neg_double": lambda a: -a,
    "add_double": lambda a, b: a + b,
    "sub_double": lambda a, b: a - b,
    "mul_double": lambda a, b: a * b,
}


def _set_elements(items: Column, kind: Type) -> Column:
    """Return the elements of a list as a set, sorted; NULL where one of them is no value."""
    checked = items
    if kind == DOUBLE:  # 0.0 is the one zero; what is infinite or NaN is no value
        checked = F.transform(items, lambda it: solidify(bring_in(it, kind, 1)).column + F.lit(0.0))
    elif kind not in {BOOL, INT}:
        checked = F.transform(
            items, lambda it: F.when(bring_in(it, kind, 1).column.isNotNull(), it)
        )
    sound = ~F.exists(checked, lambda it: it.isNull())
    return F.when(sound, F.array_distinct(checked))


def set_operation(operation: str, kind: Type) -> Callable[[Column, Column], Column]:
    """Return an operation on two lists of a type as sets."""

    def combine(one: Column, other: Column) -> Column:
        left, right = _set_elements(one, kind), _set_elements(other, kind)
        if operation == "subset":
            return F.array_size(F.array_except(left, right)) == 0
        joined = {
            "union": F.array_union,
            "intersect": F.array_intersect,
            "minus": F.array_except,
        }[operation]
        return F.sort_array(joined(left, right))

    return combine


# `in` a list from outside: found, or else false unless an element is no value.


def _member_text(item: Column, items: Column) -> Column:
    # One text with a comma between the elements is UTF-8 if and only if each of them is.
    valid = F.is_valid_utf8(F.array_join(items, ","))
    return F.array_contains(items, item) | F.when(valid, F.lit(col=False))


def _member_double(item: Column, items: Column) -> Column:
    loose = [F.array_contains(items, F.lit(x)) for x in (INFINITY, -INFINITY, float("nan"))]
    valid = ~F.coalesce(reduce(or_, loose), F.lit(col=False))
    return F.array_contains(items, item) | F.when(valid, F.lit(col=False))


def _member_checked(kind: Scalar) -> Callable[[Column, Column], Column]:
    def member(item: Column, items: Column) -> Column:
        found = F.exists(items, lambda it: bring_in(it, kind, 1).column == item)
        return F.when(item.isNotNull(), found)  # also of an empty list

    return member


MEMBERS: Final[Mapping[Type, Callable[[Column, Column], Column]]] = {
    BOOL: lambda item, items: F.array_contains(items, item),
    INT: lambda item, items: F.array_contains(items, item),
    STRING: _member_text,
    DOUBLE: _member_double,
    TIMESTAMP: _member_checked(TIMESTAMP),
    DURATION: _member_checked(DURATION),
}
