"""Values within a column: their form, their checks, and how they are used twice.

Rules that hold here:
- Inside a column, timestamps and durations are microseconds (BIGINT). Lists, maps and
  records stay as they come; an element is checked where it is taken out.
- A double may turn infinite or NaN on the way and stays so through + - *; it becomes
  NULL (`solidify`) where a comparison, a division or the result would look at it.
- An operand that is used more than once is repeated while small and bound to a lambda
  variable (`let`) otherwise: a column grows with its expression, never exponentially.
  The operand of a condition (CASE, NANVL) is small as well: looking for common parts,
  Spark visits it twice, and so 2ⁿ times where n conditions lie within each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang.limits import MAX_DURATION, MAX_INT, MAX_TIMESTAMP, MIN_INT, MIN_TIMESTAMP
from penstock.lang.scalars import EPOCH, MICROSECOND
from penstock.lang.types import (
    BOOL,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    RecordType,
    Scalar,
    Type,
)

MIN_TIME: Final = (MIN_TIMESTAMP - EPOCH) // MICROSECOND
_MAX_TIME: Final = (MAX_TIMESTAMP - EPOCH) // MICROSECOND
_MAX_SPAN: Final = MAX_DURATION // MICROSECOND
MICROSECONDS: Final = 1_000_000
DAY: Final = 86_400 * MICROSECONDS
HOUR: Final = 3_600 * MICROSECONDS
MINUTE: Final = 60 * MICROSECONDS
INFINITY: Final = float("inf")
REPEATABLE: Final = 16  # an operand of up to so many parts is repeated, not bound


class ColumnValue(NamedTuple):
    """A column within an expression: how large it is, and whether it is surely finite."""

    column: Column
    weight: int = 1
    finite: bool = True


Finish: TypeAlias = Callable[[ColumnValue, Type], Column]


def let(
    values: Sequence[ColumnValue], body: Callable[..., Column], *, finite: bool = True
) -> ColumnValue:
    """Use values several times in a body without repeating large ones."""
    weight = sum(value.weight for value in values)
    if weight <= REPEATABLE:
        return ColumnValue(body(*(value.column for value in values)), 3 * weight + 4, finite)
    names = [f"p{index}" for index in range(len(values))]
    parts = [value.column.alias(name) for value, name in zip(values, names, strict=True)]
    bound = F.transform(
        F.array(F.struct(*parts)), lambda it: body(*(it.getField(name) for name in names))
    )
    return ColumnValue(F.get(bound, F.lit(0)), weight + 8, finite)


def solidify(value: ColumnValue) -> ColumnValue:
    """Return a double that is NULL where it is infinite or NaN."""
    if value.finite:
        return value
    # A finite number modulo infinity is itself; infinity and NaN modulo infinity are NaN.
    known = value.column % F.lit(INFINITY)
    if value.weight <= REPEATABLE:
        known = F.nanvl(known, F.lit(None).cast("double"))
    else:
        known = F.get(F.array_remove(F.array(known), float("nan")), F.lit(0))
    return ColumnValue(known, value.weight + 4)


def bigint(number: int) -> Column:
    """Return a constant of 64 bits."""
    return F.lit(number).cast("bigint")


def add(a: Column, b: Column) -> Column:
    """Add two BIGINTs; NULL where they overflow."""
    return _opaque(F.try_add(a, b))


def multiply(a: Column, b: Column) -> Column:
    """Multiply two BIGINTs; NULL where they overflow."""
    return _opaque(F.try_multiply(a, b))


def _opaque(value: Column) -> Column:
    """Keep the optimizer from joining the constants of nested sums and products.

    Spark 4 turns try_add(try_add(x, 1), -1) into x, and loses the overflow in between.
    """
    return value.bitwiseAND(bigint(-1))


def within(value: Column, least: int, most: int) -> Column:
    """Return a BIGINT that is NULL outside a range, by overflowing on purpose."""
    above, below = bigint(MAX_INT - most), bigint(least - MIN_INT)
    upper = F.try_subtract(add(value, above), above)
    return add(F.try_subtract(upper, below), below)


def as_moment(value: Column) -> Column:
    """Return microseconds since 1970, NULL beyond the range of timestamp."""
    return within(value, MIN_TIME, _MAX_TIME)


def as_span(value: Column) -> Column:
    """Return microseconds, NULL beyond the range of duration."""
    return within(value, -_MAX_SPAN, _MAX_SPAN)


def divide(value: Column, by: int) -> Column:
    """Divide a BIGINT by a constant, rounding towards zero."""
    return F.call_function("div", value, bigint(by))


def bring_in(taken: Column, kind: Type, weight: int) -> ColumnValue:
    """Check a value from outside and give it the form it has within a column."""
    if kind == STRING:
        return ColumnValue(F.try_validate_utf8(taken), weight + 1)
    if kind == DOUBLE:
        return ColumnValue(taken, weight, finite=False)
    if kind == TIMESTAMP:
        return ColumnValue(as_moment(F.unix_micros(taken)), weight + 5)
    if kind == DURATION:
        micros = (taken.cast("decimal(20,6)") * MICROSECONDS).cast("bigint")
        return ColumnValue(as_span(micros), weight + 6)
    return ColumnValue(taken, weight)


def bring_out(value: ColumnValue, kind: Type) -> Column:
    """Give a value the form it has outside: in results, lists and maps."""
    if kind == TIMESTAMP:
        return F.timestamp_micros(value.column)
    if kind == DURATION:
        return F.expr("INTERVAL '0 00:00:00.000001' DAY TO SECOND") * value.column
    if isinstance(kind, Scalar):
        return solidify(value).column
    return clean(value.column, kind)


def clean(taken: Column, kind: Type, finish: Finish = bring_out) -> Column:
    """Make every part of an unchecked value NULL that is no value; finish each scalar."""
    match kind:
        case ListOf(element=element):
            if element in {BOOL, INT}:
                return taken
            return F.transform(taken, lambda item: clean(item, element, finish))
        case MapOf(value=inner):
            known = F.map_filter(taken, lambda key, _: F.is_valid_utf8(key))
            return F.transform_values(known, lambda _, item: clean(item, inner, finish))
        case RecordType(fields=fields):
            parts = [clean(taken.getField(name), inner, finish) for name, inner in fields]
            named = [part.alias(name) for part, (name, _) in zip(parts, fields, strict=True)]
            return F.when(taken.isNotNull(), F.struct(*named))
        case _:
            return finish(bring_in(taken, kind, 1), kind)
