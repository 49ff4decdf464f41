"""Noise as columns: the arithmetic of `penstock.masks.noise` and `penstock.masks.noise`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import (
    INTEGERS,
    LEAST,
    MAX_DOUBLE,
    MAX_FLOAT,
    MOST,
    FieldType,
)
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
from penstock.masks.spark.column_builder import ColumnBuilder, spark_type


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


def _bigint(number: int) -> Column:
    return F.lit(number).cast("bigint")


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
