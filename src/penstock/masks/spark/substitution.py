"""Substitution as columns, with and without a condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang.spark import column
from penstock.masks.conditional_substitution import ConditionalSubstitution
from penstock.masks.conditions import ROOT
from penstock.masks.fields import Field, FieldType, Schema
from penstock.masks.mask import Stage, fit
from penstock.masks.spark.column_builder import ColumnBuilder, write_text
from penstock.masks.substitution import BITS, Substitution

_DAY: Final = 86_400_000_000
_ARROW: Final[Mapping[FieldType, Any]] = {
    FieldType.STRING: pa.string(),
    FieldType.INT: pa.int32(),
    FieldType.LONG: pa.int64(),
    FieldType.FLOAT: pa.float32(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.DATE: pa.date32(),
}


def substitute(mask: Substitution, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return substitutes, chosen by value or by record."""
    made = {}
    for key in mask.keys:
        found, value = stage.schema[key], builder.columns[key]
        message = builder.identity if mask.random else write_text(found.type, value)
        secret = mask.key(stage.target(key))
        chosen = _choose(mask.substitution_list, mask.output(found), builder, secret, message)
        made[key] = F.when(value.isNotNull(), chosen)
    return made


def _choose(
    substitutes: tuple[Any, ...], found: Field, builder: ColumnBuilder, key: bytes, message: Column
) -> Column:
    values = builder.constant(fit(substitutes, found), _ARROW[found.type])
    index = builder.draw(key, message, BITS) % len(substitutes)
    return F.get(values, index.cast("int"))


def substitute_where(
    mask: ConditionalSubstitution, stage: Stage, builder: ColumnBuilder
) -> dict[str, Column]:
    """Return substitutes where the condition is met or has no answer, else the values."""
    inputs = {ROOT: _read_fields(stage.schema, builder.columns)}
    expressions = {key: mask.condition(key, stage.schema) for key in mask.keys}
    texts = list(dict.fromkeys(made.text for made in expressions.values()))
    by_text = {made.text: made for made in expressions.values()}
    asked = builder.keep(
        *(F.coalesce(column(by_text[text], inputs), F.lit(col=True)) for text in texts)
    )
    met = dict(zip(texts, asked, strict=True))
    made = {}
    for key in mask.keys:
        found, value = stage.schema[key], builder.columns[key]
        output = mask.output(found)
        if mask.needs_keys:
            message = F.coalesce(write_text(found.type, value), F.lit(""))
            secret = mask.key(stage.target(key))
            chosen = _choose(mask.substitution_list, output, builder, secret, message)
        else:
            values = builder.constant(fit(mask.substitution_list, output), _ARROW[output.type])
            chosen = F.get(values, F.lit(0))
        rest = write_text(found.type, value) if mask.as_ else value
        made[key] = F.when(met[expressions[key].text], chosen).otherwise(rest)
    return made


def _read_fields(schema: Schema, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns in the types that expressions take."""
    return {name: _read_field(columns[name], found.type) for name, found in schema.items()}


def _read_field(value: Column, kind: FieldType) -> Column:
    match kind:
        case FieldType.INT:
            return value.cast("bigint")
        case FieldType.FLOAT:
            return value.cast("double")
        case FieldType.DATE:
            return F.timestamp_micros(F.unix_date(value).cast("bigint") * F.lit(_DAY))
        case _:
            return value
