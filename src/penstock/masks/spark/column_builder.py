"""The builder of columns: the steps that lay masks over a frame, and the arithmetic of numbers.

Steps name columns and hold none of a frame, so that they are built once and applied to
batch after batch.

Rules that hold here:
- Within a builder columns have names of its own, so that no name of a field can be
  ambiguous, whatever its letters are; `columns` has the current one of each field.
- `keep` gives an intermediate result a column: what is used several times is computed
  once, and expressions stay small enough to be compiled.
- `constant` brings a value in without showing it in the plan.
- Values become texts as `fields.TEXTS` makes them.
- Bucketizing and noise compute as `masks.generalization` and `masks.noise` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import (
    DATES,
    INTEGERS,
    LEAST,
    MAX_DOUBLE,
    MAX_EXACT,
    MAX_FLOAT,
    MOST,
    FieldType,
)
from penstock.masks.generalization import FIRST_MONTH, LAST_MONTH, MONTHS, Bucketizing, Grid
from penstock.masks.mask import Stage
from penstock.masks.noise import (
    HALF,
    LAST_OCTAVE,
    LINES,
    REST,
    REST_BITS,
    UNIT,
    WORD,
    Noise,
    quantile_table,
)
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


_DAY: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()


def bucketize(mask: Bucketizing, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return labels; null for a value without a bucket."""
    units, labels = {}, {}
    for key in mask.keys:
        kind, value = stage.schema[key].type, builder.columns[key]
        grid = mask.grid(stage.schema[key])
        if kind in INTEGERS:
            units[key] = value.cast("bigint")
        elif kind in DATES:
            units[key] = _count_dates(value, kind, months=mask.unit != "days")
        else:
            units[key] = _count_decimals(value, kind, grid, builder)
    for key, unit in zip(units, builder.keep(*units.values()), strict=True):
        low = F.try_subtract(unit, _rest(unit, mask.grid(stage.schema[key])))
        labels[key] = low
    for key, low in zip(labels, builder.keep(*labels.values()), strict=True):
        grid = mask.grid(stage.schema[key])
        high = F.try_add(low, _bigint(grid.size))
        dates = stage.schema[key].type in DATES
        labels[key] = _label_dates(low, high, mask.unit) if dates else _label(low, high, grid)
    return labels


def _bigint(number: int) -> Column:
    return F.lit(number).cast("bigint")


def _rest(unit: Column, grid: Grid) -> Column:
    """Return how far a unit lies above the bound below it, without overflow."""
    size = _bigint(grid.size)
    return F.pmod(F.pmod(unit, size) - _bigint(grid.origin % grid.size), size)


def _count_decimals(value: Column, kind: FieldType, grid: Grid, builder: ColumnBuilder) -> Column:
    """Return the last unit of the grid that does not lie above a number."""
    scale = F.lit(grid.scale)
    scaled = value.cast("double") * scale
    fits = (scaled > float(-MAX_EXACT)) & (scaled < float(MAX_EXACT))
    (unit,) = builder.keep(F.when(fits, F.floor(scaled)))

    def bound(at: Column) -> Column:
        exact = at.cast("double") / scale
        return exact.cast("float") if kind is FieldType.FLOAT else exact

    one = _bigint(1)
    return (
        F.when(bound(unit + one) <= value, unit + one)
        .when(bound(unit) > value, unit - one)
        .otherwise(unit)
    )


def _count_dates(value: Column, kind: FieldType, *, months: bool) -> Column:
    """Return days as Python counts them, or months since the year 0."""
    if kind is FieldType.TIMESTAMP:
        moment, day = F.unix_micros(value), _bigint(_DAY)
        days = F.call_function("div", moment - F.pmod(moment, day), day)
        value = F.date_from_unix_date(days.cast("int"))
    if months:
        return (F.year(value) * MONTHS + F.month(value) - 1).cast("bigint")
    return (F.unix_date(value) + _EPOCH).cast("bigint")


def _label(low: Column, high: Column, grid: Grid) -> Column:
    bounds = [low, high]
    if grid.places:
        unit = F.lit(Decimal(1).scaleb(-grid.places))
        bounds = [bound.cast("decimal(20,0)") * unit for bound in bounds]
    return _join(*(bound.cast("string") for bound in bounds))


def _label_dates(low: Column, high: Column, unit: str) -> Column:
    if unit == "days":
        fits = (low >= date.min.toordinal()) & (high <= date.max.toordinal())
        return F.when(fits, _join(_write_day(low), _write_day(high)))
    fits = (low >= FIRST_MONTH) & (high <= LAST_MONTH)
    return F.when(fits, _join(_write_month(low), _write_month(high)))


def _write_day(day: Column) -> Column:
    return F.date_from_unix_date((day - _EPOCH).cast("int")).cast("string")


def _write_month(month: Column) -> Column:
    year = F.call_function("div", month, _bigint(MONTHS)).cast("string")
    part = (month % MONTHS + 1).cast("string")
    return F.concat(F.lpad(year, 4, "0"), F.lit("-"), F.lpad(part, 2, "0"), F.lit("-01"))


def _join(low: Column, high: Column) -> Column:
    return F.concat(F.lit("["), low, F.lit(" - "), high, F.lit("]"))


def add_noise(mask: Noise, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return moved numbers; null where a number is not finite."""
    # One step for what is used several times: Spark plans every step with every batch, and
    # finds by itself what stands twice within one.
    words = builder.keep(*(_draw_word(mask.key(stage.target(key)), builder) for key in mask.keys))
    if mask.distribution == "uniform":
        draws = [_draw_uniform(word) for word in words]
    else:
        table = builder.constant(quantile_table(mask.distribution), pa.float64())
        draws = [_draw_quantile(word, table) for word in words]
    moved = {}
    for key, draw in zip(mask.keys, draws, strict=True):
        value, amount = builder.columns[key], draw * mask.noise
        if mask.mode == "multiplicative":
            amount = _number(value) * amount
        moved[key] = _move(value, amount, stage.schema[key].type)
    return moved


def _number(value: Column) -> Column:
    return F.coalesce(value.cast("double"), F.lit(0.0))


def _draw_word(key: bytes, builder: ColumnBuilder) -> Column:
    secret = F.get(builder.constant([key], pa.binary()), F.lit(0))
    digits = F.sha2(F.concat(secret, builder.identity.cast("binary")), 256)
    word = F.conv(F.substring(digits, 1, WORD // 4), 16, 10).cast("bigint")
    # A column that is never null takes half the code, and small code is compiled. A record
    # without an identity is rejected whatever it draws.
    return F.coalesce(word, _bigint(0))


def _draw_uniform(word: Column) -> Column:
    return ((word - _bigint(HALF)).cast("double") + 0.5) * UNIT * 2.0


def _draw_quantile(word: Column, table: Column) -> Column:
    ended = word.bitwiseOR(_bigint(LAST_OCTAVE))
    zeros = F.bit_count(ended.bitwiseXOR(ended - _bigint(1))) - 1
    line = (zeros * LINES + F.shiftright(word, REST_BITS).cast("int")) * 2
    start, slope = (F.coalesce(F.get(table, at), F.lit(0.0)) for at in (line, line + 1))
    return start + slope * word.bitwiseAND(_bigint(REST)).cast("double")


def _move(value: Column, amount: Column, kind: FieldType) -> Column:
    if kind is FieldType.LONG:
        return _move_long(value, amount)
    if kind in INTEGERS:
        amount = F.rint(amount)
    # A double holds every sum of whole numbers that does not leave an int.
    least, most = _BOUNDS[kind]
    moved = F.least(F.greatest(_number(value) + amount, F.lit(least)), F.lit(most))
    finite = F.abs(value.cast("double")) <= MAX_DOUBLE  # false for NaN too
    return F.when(finite, moved.cast(spark_type(kind)))


def _move_long(value: Column, amount: Column) -> Column:
    least, most = LEAST[FieldType.LONG], MOST[FieldType.LONG]
    rounded = F.rint(amount)
    whole = (
        F.when(rounded >= -float(least), _bigint(most))
        .when(rounded < float(least), _bigint(least))
        .otherwise(rounded.try_cast("bigint"))
    )
    beyond = F.when(amount > 0.0, _bigint(most)).otherwise(_bigint(least))
    moved = F.coalesce(F.try_add(value, whole), beyond)
    return F.when(value.isNotNull(), moved)


_BOUNDS: Final[Mapping[FieldType, tuple[float, float]]] = {
    FieldType.INT: (float(LEAST[FieldType.INT]), float(MOST[FieldType.INT])),
    FieldType.FLOAT: (-MAX_FLOAT, MAX_FLOAT),
    FieldType.DOUBLE: (-MAX_DOUBLE, MAX_DOUBLE),
}
