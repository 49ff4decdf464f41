"""The builder of columns: the steps that lay masks over a frame, whichever frame it will be.

Steps name columns and hold none of a frame, so that they are built once and applied to
batch after batch.

Rules that hold here:
- Within a builder columns have names of its own, so that no name of a field can be
  ambiguous, whatever its letters are; `columns` has the current one of each field.
- `keep` gives an intermediate result a column: what is used several times is computed
  once, and expressions stay small enough to be compiled.
- `constant` brings a value in without showing it in the plan.
- Values become texts as `fields.TEXTS` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import FieldType
from penstock.masks.supplies import split_key

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


def write_text(kind: FieldType, column: Column) -> Column:
    """Return values as texts, the same as `fields.TEXTS` makes."""
    if kind is FieldType.STRING:
        return column
    if kind is FieldType.TIMESTAMP:
        return F.unix_micros(column).cast("string")
    return column.cast("string")


class ColumnBuilder:
    """Steps so far, the current column of each field, and why rows are rejected."""

    def __init__(
        self, session: SparkSession, columns: Mapping[str, Column], identity: Column | None
    ) -> None:
        self._session = session
        self._steps: list[list[Column]] = []
        self.reasons: list[Column] = []
        self._count = 0
        given = [*columns.values(), F.lit(None).cast("string") if identity is None else identity]
        *kept, self.identity = self.keep(*given)
        self.columns = dict(zip(columns, kept, strict=True))

    def keep(self, *columns: Column) -> list[Column]:
        """Return columns that are computed once, however often they are used."""
        names = [f"penstock_{self._count + index}" for index in range(len(columns))]
        self._count += len(columns)
        named = [column.alias(name) for column, name in zip(columns, names, strict=True)]
        if named:
            self._steps.append(named)
        return [F.col(name) for name in names]

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the frame with all columns that were kept."""
        for step in self._steps:
            frame = frame.select("*", *step)
        return frame

    def constant(self, values: Sequence[Any], kind: pa.DataType) -> Column:
        """Return an array of constants that the plan does not show."""
        table = pa.table({"value": pa.array([values], pa.list_(kind))})
        return self._session.createDataFrame(table).scalar()

    def hash(self, key: bytes, message: Column) -> Column:
        """Return HMAC-SHA-256 of texts under a key, as 64 small hexadecimal digits."""
        blocks = self.constant(split_key(key), pa.binary())
        inner = F.sha2(F.concat(F.get(blocks, F.lit(0)), message.cast("binary")), 256)
        return F.sha2(F.concat(F.get(blocks, F.lit(1)), F.unhex(inner)), 256)

    def draw(self, key: bytes, message: Column, bits: int) -> Column:
        """Return the first bits, a multiple of 4 below 64, of the hash as a number."""
        digits = F.substring(self.hash(key, message), 1, bits // 4)
        return F.conv(digits, 16, 10).cast("bigint")
