"""Values of a column: inputs and their types, their form inside, and how they are used twice.

Rules that hold here:
- An input is a struct column for a root, or a mapping from its fields to columns.
- A struct may hold more fields than are declared; those declared have exactly the type
  of `spark_type`. Nothing is cast unasked: a cast would give wrong values a meaning.
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

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

from pyspark import errors as spark_errors
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as spark_types

from penstock.errors import InvalidError, Problem, quote
from penstock.lang import tree
from penstock.lang.errors import MAX_DURATION, MAX_INT, MAX_TIMESTAMP, MIN_INT, MIN_TIMESTAMP
from penstock.lang.expression import Expression
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

Inputs: TypeAlias = Mapping[str, "Column | Mapping[str, Column]"]

_SPARK_TYPES: Final[Mapping[Scalar, spark_types.DataType]] = {
    BOOL: spark_types.BooleanType(),
    INT: spark_types.LongType(),
    DOUBLE: spark_types.DoubleType(),
    STRING: spark_types.StringType(),
    TIMESTAMP: spark_types.TimestampType(),
    DURATION: spark_types.DayTimeIntervalType(),
}


def spark_type(kind: Type) -> spark_types.DataType:
    """Return the Spark type that holds values of a type, for schemas and from_json."""
    match kind:
        case ListOf(element=element):
            return spark_types.ArrayType(spark_type(element))
        case MapOf(value=value):
            return spark_types.MapType(spark_types.StringType(), spark_type(value))
        case RecordType():
            return spark_struct(kind)
        case _:
            return _SPARK_TYPES[kind]


def spark_struct(record: RecordType) -> spark_types.StructType:
    """Return the Spark type that holds a record, such as a root of a scope."""
    return spark_types.StructType(
        [spark_types.StructField(name, spark_type(kind)) for name, kind in record.fields]
    )


def check_inputs(expression: Expression, inputs: Inputs, frame: DataFrame) -> None:
    """Raise InvalidError where columns of a frame differ from what an expression declares."""
    problems = []
    paths = sorted(set(tree.find_references(expression.tree)))
    for path in paths:
        place = ".".join(path)
        kind: Type | None = expression.scope.root(path[0])
        for name in path[1:]:
            kind = kind.field(name) if isinstance(kind, RecordType) else None
        if kind is None:
            raise TypeError(f"the checker let {place} pass")
        try:
            found = frame.select(take_path(inputs, path).alias("value")).schema["value"].dataType
        except (KeyError, spark_errors.AnalysisException):
            problems.append(Problem(place, f"the frame has no such column for {kind}"))
            continue
        if not _holds(found, kind):
            wanted = spark_type(kind).simpleString()
            fix = f"cast the column to {wanted}"
            problems.append(Problem(place, f"the column is {found.simpleString()}", fix))
    if problems:
        raise InvalidError(f"columns for the expression {quote(expression.text)}", problems)


def _holds(found: spark_types.DataType, kind: Type) -> bool:
    match kind, found:
        case ListOf(element=element), spark_types.ArrayType():
            return _holds(found.elementType, element)
        case MapOf(value=value), spark_types.MapType():
            return found.keyType == spark_types.StringType() and _holds(found.valueType, value)
        case RecordType(fields=fields), spark_types.StructType():
            return all(
                name in found.names and _holds(found[name].dataType, inner)
                for name, inner in fields
            )
        case _:
            return found == spark_type(kind)


def take_path(inputs: Inputs, path: Sequence[str]) -> Column:
    """Return the column of a path, unchecked."""
    root, *names = path
    given = inputs.get(root, {})
    if isinstance(given, Column):
        return reduce(Column.getField, names, given)
    if not names:
        return F.struct(*(part.alias(name) for name, part in given.items()))
    return reduce(Column.getField, names[1:], given[names[0]])


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
