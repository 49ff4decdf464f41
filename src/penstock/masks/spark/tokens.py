"""Tokens as columns: pseudonyms natively, FF1 and vaults in Arrow batches.

Workers get parameters and keys within the serialized function, and build ciphers once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import FieldType
from penstock.masks.mask import Stage, Target
from penstock.masks.spark.types import spark_type, write_text
from penstock.masks.spark.workbench import Workbench
from penstock.masks.tokenization import TOKEN, Tokenization, make_token

_ARROW = {FieldType.STRING: pa.string(), FieldType.INT: pa.int32(), FieldType.LONG: pa.int64()}


def tokenize(mask: Tokenization, stage: Stage, bench: Workbench) -> dict[str, Column]:
    """Return tokens; null where a value does not have the format of FF1."""
    made = {}
    for key in mask.keys:
        target, value = stage.target(key), bench.columns[key]
        text = write_text(target.field.type, value)
        if mask.method == "pseudonym":
            made[key] = F.substring(bench.hash(mask.key(target), text), 1, TOKEN)
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
