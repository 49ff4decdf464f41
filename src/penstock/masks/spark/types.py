"""Field types as Spark types, and values as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import FieldType, Schema

_TYPES: Final[Mapping[FieldType, types.DataType]] = {
    FieldType.STRING: types.StringType(),
    FieldType.INT: types.IntegerType(),
    FieldType.LONG: types.LongType(),
    FieldType.FLOAT: types.FloatType(),
    FieldType.DOUBLE: types.DoubleType(),
    FieldType.BOOLEAN: types.BooleanType(),
    FieldType.DATE: types.DateType(),
    FieldType.TIMESTAMP: types.TimestampType(),
}


def spark_type(kind: FieldType) -> types.DataType:
    """Return the Spark type that holds values of a field's type."""
    return _TYPES[kind]


def spark_schema(schema: Schema) -> types.StructType:
    """Return a schema as Spark knows it."""
    return types.StructType(
        [
            types.StructField(name, _TYPES[found.type], found.optional)
            for name, found in schema.items()
        ]
    )


def write_text(kind: FieldType, column: Column) -> Column:
    """Return values as texts, the same as `fields.TEXTS` makes."""
    if kind is FieldType.STRING:
        return column
    if kind is FieldType.TIMESTAMP:
        return F.unix_micros(column).cast("string")
    return column.cast("string")
