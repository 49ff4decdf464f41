"""The columns of each mask, by name: a function here, or in `numbers`.

Rules that hold here:
- Pseudonyms are native columns. FF1 and vaults run in Arrow batches: workers get parameters
  and keys within the serialized function, and build ciphers once.
- Generalization looks into an array of small maps, and the checksum of the value (CRC-32,
  the same in Python and Spark) tells which: Spark looks for a key in a map one entry after
  the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang.spark import column
from penstock.masks.conditions import ROOT
from penstock.masks.fields import Field, FieldType, Schema
from penstock.masks.generalization import BLUR_SYMBOL, Blurring, Generalization, Suppression
from penstock.masks.mask import Mask, Stage, Target, fit
from penstock.masks.spark.column_builder import ColumnBuilder, spark_type, write_text
from penstock.masks.spark.numbers import add_noise, bucketize
from penstock.masks.substitution import BITS, ConditionalSubstitution, Substitution
from penstock.masks.tokenization import TOKEN, Tokenization, make_token

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


def generalize(mask: Generalization, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return general values; null where a value is unknown and there is no default."""
    made = {}
    for key in mask.keys:
        target = stage.target(key)
        text = write_text(target.field.type, builder.columns[key])
        begins = text if mask.beginning is None else F.substring(text, 1, mask.beginning)
        found = _look_up(mask.table(target), begins, builder)
        if mask.default is not None:
            found = F.when(text.isNotNull(), F.coalesce(found, F.lit(mask.default)))
        made[key] = found
    return made


def _look_up(table: dict[str, str], text: Column, builder: ColumnBuilder) -> Column:
    count = max(1, len(table))
    slots: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    for entry in table.items():
        slots[zlib.crc32(entry[0].encode()) % count].append(entry)
    array = builder.constant(slots, pa.map_(pa.string(), pa.string()))
    slot = F.get(array, (F.crc32(text.cast("binary")) % count).cast("int"))
    return F.try_element_at(slot, text)


def tokenize(mask: Tokenization, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return tokens; null where a value does not have the format of FF1."""
    made = {}
    for key in mask.keys:
        target, value = stage.target(key), builder.columns[key]
        text = write_text(target.field.type, value)
        if mask.method == "pseudonym":
            made[key] = F.substring(builder.hash(mask.key(target), text), 1, TOKEN)
        elif mask.method == "vault":
            made[key] = _store(mask, target)(text)
        else:
            made[key] = _encrypt(mask, target)(value)
    return made


def _encrypt(mask: Tokenization, target: Target) -> Callable[[Column], Column]:
    kind = target.field.type
    cached: dict[str, Any] = {}

    def encrypt(batch: pa.Array) -> pa.Array:
        if not cached:
            cached["format"] = mask.format(target)  # ciphers cannot be serialized
        cipher = cached["format"].encrypt
        made = [None if value is None else cipher(value) for value in batch.to_pylist()]
        return pa.array(made, _ARROW[kind])

    return _arrow_udf(encrypt, spark_type(kind).simpleString())


def _store(mask: Tokenization, target: Target) -> Callable[[Column], Column]:
    key, name = mask.key(target), str(mask.vault)

    def store(batch: pa.Array) -> pa.Array:
        seal, vault = mask.seal(target), target.supplies.require_vault()
        texts = batch.to_pylist()
        tokens = [None if text is None else make_token(key, text) for text in texts]
        pairs = {token: text for token, text in zip(tokens, texts, strict=True) if token}
        vault.put(name, {token: seal.close(token, text) for token, text in pairs.items()})
        return pa.array(tokens, pa.string())

    return _arrow_udf(store, "string")


def _arrow_udf(function: Callable[[pa.Array], pa.Array], kind: str) -> Callable[[Column], Column]:
    # The type hints of `function` say that it is an Arrow function; the stubs of pyspark
    # do not know this way to call it.
    made: Callable[[Column], Column] = F.arrow_udf(function, kind)  # type: ignore[attr-defined]
    return made


Builder: TypeAlias = Callable[[Any, Stage, ColumnBuilder], dict[str, Column]]
"""Returns the masked column of each key; null for a value that the mask cannot take."""


def suppress(mask: Suppression, stage: Stage, _: ColumnBuilder) -> dict[str, Column]:
    """Return constants."""
    return {
        key: F.lit(mask.replacement(stage.schema[key])).cast(
            spark_type(mask.output(stage.schema[key]).type)
        )
        for key in mask.keys
    }


def blur(mask: Blurring, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return texts with Xs."""
    made = {}
    for key in mask.keys:
        text = write_text(stage.schema[key].type, builder.columns[key])
        length = F.length(text)
        count = length if mask.n_fields is None else F.least(length, F.lit(mask.n_fields))
        rest = length - count
        hidden = F.repeat(F.lit(BLUR_SYMBOL), count) if mask.keep_length else F.lit(BLUR_SYMBOL)
        if mask.from_ == "start":
            parts = (hidden, F.substring(text, count + 1, rest))
        else:
            parts = (F.substring(text, F.lit(1), rest), hidden)
        made[key] = F.when(text.isNotNull(), F.concat(*parts))
    return made


_BUILDERS: Final[Mapping[str, Builder]] = {
    "suppression": suppress,
    "blurring": blur,
    "substitution": substitute,
    "tokenization": tokenize,
    "generalization": generalize,
    "bucketizing": bucketize,
    "noise": add_noise,
    "conditional_substitution": substitute_where,
}


def build_columns(mask: Mask, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return the masked column of each key."""
    return _BUILDERS[mask.name](mask, stage, builder)
