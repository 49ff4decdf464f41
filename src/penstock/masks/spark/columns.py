"""The columns of each mask: one function per mask, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.blurring import SYMBOL, Blurring
from penstock.masks.mask import Mask, Stage
from penstock.masks.spark.buckets import bucketize
from penstock.masks.spark.choices import substitute, substitute_where
from penstock.masks.spark.lookups import generalize
from penstock.masks.spark.noise import add_noise
from penstock.masks.spark.tokens import tokenize
from penstock.masks.spark.types import spark_type, write_text
from penstock.masks.spark.workbench import Workbench
from penstock.masks.suppression import Suppression

Builder: TypeAlias = Callable[[Any, Stage, Workbench], dict[str, Column]]
"""Returns the masked column of each key; null for a value that the mask cannot take."""


def suppress(mask: Suppression, stage: Stage, _: Workbench) -> dict[str, Column]:
    """Return constants."""
    return {
        key: F.lit(mask.replacement(stage.schema[key])).cast(
            spark_type(mask.output(stage.schema[key]).type)
        )
        for key in mask.keys
    }


def blur(mask: Blurring, stage: Stage, bench: Workbench) -> dict[str, Column]:
    """Return texts with Xs."""
    made = {}
    for key in mask.keys:
        text = write_text(stage.schema[key].type, bench.columns[key])
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


def build_columns(mask: Mask, stage: Stage, bench: Workbench) -> dict[str, Column]:
    """Return the masked column of each key."""
    return _BUILDERS[mask.name](mask, stage, bench)
