"""Noise as columns: the arithmetic of `penstock.masks.draws` and `penstock.masks.noise`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.draws import (
    CELLS,
    HALF,
    LAST,
    REST,
    REST_BITS,
    REST_UNIT,
    UNIT,
    WORD,
    quantile_table,
)
from penstock.masks.fields import (
    INTEGERS,
    LEAST,
    MAX_DOUBLE,
    MAX_FLOAT,
    MOST,
    FieldType,
)
from penstock.masks.mask import Stage
from penstock.masks.noise import Noise
from penstock.masks.spark.types import spark_type
from penstock.masks.spark.workbench import Workbench


def add_noise(mask: Noise, stage: Stage, bench: Workbench) -> dict[str, Column]:
    """Return moved numbers; null where a number is not finite."""
    # A column that is never null takes half the code, and small code is compiled. A record
    # without an identity is rejected whatever it draws.
    words = bench.keep(
        *(
            F.coalesce(bench.draw(mask.key(stage.target(key)), bench.identity, WORD), _bigint(0))
            for key in mask.keys
        )
    )
    draws = _draw_uniform(words)
    if mask.distribution != "uniform":
        draws = _draw_quantiles(words, mask.distribution, bench)
    amounts = [draw * mask.noise for draw in draws]
    values = [bench.columns[key] for key in mask.keys]
    if mask.mode == "multiplicative":
        amounts = [_number(value) * amount for value, amount in zip(values, amounts, strict=True)]
    kept = bench.keep(*amounts)
    return {
        key: _move(value, amount, stage.schema[key].type)
        for key, value, amount in zip(mask.keys, values, kept, strict=True)
    }


def _bigint(number: int) -> Column:
    return F.lit(number).cast("bigint")


def _number(value: Column) -> Column:
    return F.coalesce(value.cast("double"), F.lit(0.0))


def _draw_uniform(words: Sequence[Column]) -> list[Column]:
    return [((word - _bigint(HALF)).cast("double") + 0.5) * UNIT * 2.0 for word in words]


def _draw_quantiles(words: Sequence[Column], distribution: str, bench: Workbench) -> list[Column]:
    table = bench.constant(quantile_table(distribution), pa.float64())
    odd = bench.keep(*(F.least(word, _bigint(LAST) - word) * 2 + 1 for word in words))
    bits = bench.keep(*(F.length(F.bin(it)) for it in odd))
    shifted = bench.keep(
        *(
            F.call_function("shiftleft", number, F.lit(WORD) - count)
            for number, count in zip(odd, bits, strict=True)
        )
    )
    cells = bench.keep(
        *(
            (count - 1) * CELLS + F.shiftright(it, REST_BITS).cast("int") - CELLS
            for it, count in zip(shifted, bits, strict=True)
        )
    )
    lows = bench.keep(*(F.coalesce(F.get(table, cell), F.lit(0.0)) for cell in cells))
    highs = [F.coalesce(F.get(table, cell + 1), F.lit(0.0)) for cell in cells]
    sizes = bench.keep(
        *(
            low + (high - low) * (it.bitwiseAND(_bigint(REST)).cast("double") * REST_UNIT)
            for it, low, high in zip(shifted, lows, highs, strict=True)
        )
    )
    return [
        F.when(word >= HALF, size).otherwise(-size) for word, size in zip(words, sizes, strict=True)
    ]


def _move(value: Column, amount: Column, kind: FieldType) -> Column:
    if kind in INTEGERS:
        return _move_integer(value, amount, kind)
    most = MAX_FLOAT if kind is FieldType.FLOAT else MAX_DOUBLE
    moved = F.least(F.greatest(_number(value) + amount, F.lit(-most)), F.lit(most))
    finite = F.abs(value.cast("double")) <= MAX_DOUBLE  # false for NaN too
    return F.when(finite, moved.cast("float") if kind is FieldType.FLOAT else moved)


def _move_integer(value: Column, amount: Column, kind: FieldType) -> Column:
    first, last = LEAST[FieldType.LONG], MOST[FieldType.LONG]
    rounded = F.rint(amount)
    whole = (
        F.when(rounded >= -float(first), _bigint(last))
        .when(rounded < float(first), _bigint(first))
        .otherwise(rounded.try_cast("bigint"))
    )
    beyond = F.when(amount > 0.0, _bigint(last)).otherwise(_bigint(first))
    moved = F.coalesce(F.try_add(value.cast("bigint"), whole), beyond)
    least, most = _bigint(LEAST[kind]), _bigint(MOST[kind])
    bounded = F.least(F.greatest(moved, least), most)
    return F.when(value.isNotNull(), bounded.cast(spark_type(kind)))
