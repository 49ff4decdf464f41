"""The columns of each mask, by name: a function here, or in a module of its own.

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

from penstock.masks.blurring import SYMBOL, Blurring
from penstock.masks.fields import FieldType
from penstock.masks.generalization import Generalization
from penstock.masks.mask import Mask, Stage, Target
from penstock.masks.spark.bucketizing import bucketize
from penstock.masks.spark.column_builder import ColumnBuilder, spark_type, write_text
from penstock.masks.spark.noise import add_noise
from penstock.masks.spark.substitution import substitute, substitute_where
from penstock.masks.suppression import Suppression
from penstock.masks.tokenization import TOKEN, Tokenization, make_token


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


_ARROW = {FieldType.STRING: pa.string(), FieldType.INT: pa.int32(), FieldType.LONG: pa.int64()}


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
        hidden = F.repeat(F.lit(SYMBOL), count) if mask.keep_length else F.lit(SYMBOL)
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
