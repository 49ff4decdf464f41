"""Rows that a collective step holds of people who do not want to be in its view any more."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.definitions.views import schema_of
from penstock.masks.spark import spark_type
from penstock.model.kinds import Stream
from penstock.pipeline.parsing import PERSON
from penstock.pipeline.steps import DeadLetter, Integers, offsets_of

_WHO: Final = "penstock:refused"


def find_persons(session: SparkSession, stream: Stream, refusing: frozenset[str]) -> Integers:
    """Return what people who refuse are known by in the stream: see `parsing.PERSON`."""
    if stream.subject is None or not refusing:
        return np.empty(0, dtype=np.int64)
    schema = types.StructType([types.StructField(_WHO, types.StringType())])
    people = session.createDataFrame([(who,) for who in sorted(refusing)], schema)
    kind = spark_type(schema_of(stream)[stream.subject].type)
    found = people.select(F.xxhash64(F.col(f"`{_WHO}`").try_cast(kind)).alias(_WHO)).toArrow()
    persons: Integers = found[_WHO].to_numpy()
    return persons


def split_off(rows: pa.Table, persons: Integers, reason: str) -> tuple[pa.Table, list[DeadLetter]]:
    """Return rows without those of some persons, and letters for these."""
    if not persons.size or not rows.num_rows:
        return rows, []
    found = pc.is_in(rows[PERSON], value_set=pa.array(persons, pa.int64()))
    letters = [DeadLetter(offset, reason) for offset in offsets_of(rows.filter(found))]
    return rows.filter(pc.invert(found)).combine_chunks(), letters
