"""Records of a stream as typed columns, and why some are none.

Rules that hold here:
- A record is one JSON object. A value of another type than declared makes the whole record
  a problem; it never becomes null by itself. What a schema does not name is left out.
- Texts may be written as numbers or objects; they become the JSON text of these.
- A problem names what is wrong and never holds what the record said.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.definitions.views import schema_of
from penstock.masks.fields import MAX_FLOAT, FieldType
from penstock.masks.spark import spark_type
from penstock.model.kinds import Stream
from penstock.pipeline.log_source import MILLISECONDS, OFFSET, VALUE

PROBLEM: Final = "penstock:problem"
PERSON: Final = "penstock:person"
TIME: Final = "penstock:time"
_PARSED: Final = "penstock:parsed"
_TEXT: Final = "penstock:text"
_CORRUPT: Final = "penstock:corrupt"

NO_TEXT: Final = "the record is not text in UTF-8"
NO_OBJECT: Final = "the record is no JSON object whose fields have the declared types"
TOO_LARGE: Final = "the field {} is declared float, and holds a larger number"


def parse_records(frame: DataFrame, stream: Stream) -> DataFrame:
    """Return the fields of records, their offsets, persons and times, and their problems."""
    schema = schema_of(stream)
    # A float is read as double, so that one that is too large is noticed.
    fields = [
        types.StructField(name, spark_type(_wide(field.type))) for name, field in schema.items()
    ]
    read_as = types.StructType([*fields, types.StructField(_CORRUPT, types.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = F.try_validate_utf8(frame[f"`{VALUE}`"].cast("string"))
    step = frame.select(OFFSET_COLUMN, MILLISECONDS_COLUMN, text.alias(_TEXT))
    step = step.withColumn(_PARSED, F.from_json(_named(_TEXT), read_as, options))
    parsed = {name: _named(_PARSED).getField(name) for name in (*schema, _CORRUPT)}
    whole = F.endswith(F.rtrim(_named(_TEXT)), F.lit("}"))
    reasons = [
        F.when(_named(_TEXT).isNull(), F.lit(NO_TEXT)),
        F.when(_named(_PARSED).isNull() | parsed[_CORRUPT].isNotNull() | ~whole, F.lit(NO_OBJECT)),
    ]
    columns = []
    for name, field in schema.items():
        column = parsed[name]
        if field.type is FieldType.FLOAT:
            large = (F.abs(column) > F.lit(MAX_FLOAT)) & (F.abs(column) < F.lit(float("inf")))
            reasons.append(F.when(large, F.lit(TOO_LARGE.format(repr(name)))))
            column = column.cast("float")
        columns.append(column.alias(name))
    subject = parsed[stream.subject] if stream.subject else None
    person = _named(OFFSET) if subject is None else F.when(subject.isNotNull(), F.xxhash64(subject))
    return step.select(
        *columns,
        _named(OFFSET),
        person.alias(PERSON),
        _time(stream, parsed).alias(TIME),
        F.coalesce(*reasons).alias(PROBLEM),
    )


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


OFFSET_COLUMN: Final = f"`{OFFSET}`"
MILLISECONDS_COLUMN: Final = f"`{MILLISECONDS}`"


def _wide(kind: FieldType) -> FieldType:
    return FieldType.DOUBLE if kind is FieldType.FLOAT else kind


def _time(stream: Stream, parsed: dict[str, Column]) -> Column:
    if stream.time is None:
        return _named(MILLISECONDS)
    column = parsed[stream.time]
    kinds = {field.name: field.type for field in stream.fields}
    return F.unix_millis(column) if kinds[stream.time] == "timestamp" else column
