"""Vital signs for forecasts: hour by hour, from a stream or from JSON lines.

    records: who, when, some sign ──▶ the worst of each hour ──▶ patient, hour, three signs

Rules that hold here:
- Of an hour the worst reading of each sign counts, so that no threshold is missed. An hour
  in which a sign was not measured is left out.
- Records that are none, that are about nobody, or that do not tell when they happened count
  as not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it

from penstock.errors import UsageError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.records.avro import FindSchema
from penstock.pipeline.records.columns import PROBLEM, TIME
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sources.source import Source

Hours: TypeAlias = DataFrame
"""The signs of people, hour by hour, with the columns of `COLUMNS`."""

COLUMNS: Final = (
    "patient string, hour bigint, temperature double, respiratory double, saturation double"
)
WORST: Final = {"temperature": F.max, "respiratory": F.max, "saturation": F.min}
HOUR: Final = 3_600_000
_NUMBERS: Final = frozenset({"int", "long", "float", "double"})
_SHARES: Final = 4


def read_lines(spark: SparkSession, path: Path) -> Hours:
    """Return the hours of a file of JSON lines."""
    return spark.read.schema(COLUMNS).json(str(path)).dropna()


def read_stream(
    spark: SparkSession, stream: Stream, source: Source, find_schema: FindSchema | None = None
) -> Hours:
    """Return the hours of all records that a stream has now."""
    subject = _check(stream)
    end = source.take_in()
    source.check(0, end)
    parsed = parse_records(source.read_stretch(spark, 0, end), stream, find_schema)
    told = parsed.where(F.col(f"`{PROBLEM}`").isNull()).select(
        F.col(f"`{subject}`").cast("string").alias("patient"),
        F.floor(F.col(f"`{TIME}`") / HOUR).alias("hour"),
        *(F.col(sign).cast("double").alias(sign) for sign in WORST),
    )
    worst = [function(sign).alias(sign) for sign, function in WORST.items()]
    return told.groupBy("patient", "hour").agg(*worst).dropna()


def split_people(signs: Hours) -> tuple[Hours, Hours]:
    """Return the hours of three of four people, and those of the others.

    Who is where depends on the name alone, so that it is the same each time.
    """
    held_out = F.pmod(F.xxhash64("patient"), F.lit(_SHARES)) == 0
    return signs.where(~held_out), signs.where(held_out)


def _check(stream: Stream) -> str:
    """Refuse a stream without vital signs; return the field that tells the patient."""
    types = {field.name: field.type for field in stream.fields}
    lacking = [sign for sign in WORST if types.get(sign) not in _NUMBERS]
    if lacking:
        raise UsageError(
            f"the stream {quote(stream.name)} has no number {quote(lacking[0])}",
            fix=f"name a stream with the fields {', '.join(WORST)}",
        )
    if stream.subject is None:
        raise UsageError(
            f"the stream {quote(stream.name)} does not say whom records are about",
            fix="add subject to its definition",
        )
    return stream.subject
