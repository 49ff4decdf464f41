"""Inputs of a column: their Spark types, and where a path leads.

Rules that hold here:
- An input is a struct column for a root, or a mapping from its fields to columns.
- A struct may hold more fields than are declared; those declared have exactly the type
  of `spark_type`. Nothing is cast unasked: a cast would give wrong values a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, TypeAlias

from pyspark import errors as spark_errors
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as spark_types

from penstock.errors import InvalidError, Problem, quote
from penstock.lang import tree
from penstock.lang.expression import Expression
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
