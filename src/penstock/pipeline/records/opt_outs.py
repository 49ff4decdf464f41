"""People who opted out of a view's purposes: found among records, on the way in and while held.

Rules that hold here:
- A record of a person who opted out of one of a view's purposes does not get into the view.
  It becomes a dead letter, so that what was read is still accounted for; the reason names
  nobody.
- People are known by the subject of the stream, as text, and found by its mark: no name of
  somebody who opted out comes to Spark. A stream without a subject says that its records are
  about nobody.
- For records that are held back: `mark_subjects` lets each carry the mark of its person, by
  which it is found before it is let go, if its person opted out meanwhile; see `forgetting`.
- Neither marks nor their key show in plans.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.definitions.views import schema_of
from penstock.masks.spark.column_builder import ColumnBuilder, write_text
from penstock.model.kinds import Stream
from penstock.pipeline.records.columns import PROBLEM, SUBJECT
from penstock.store.opt_outs import (
    NUMBER_BITS,
    Consent,
    OptedOut,
    OptOuts,
    SubjectMarks,
    nobody_opted_out,
    number_of,
)

REFUSED: Final = "the person opted out of a purpose of the view"
ERASED: Final = "the person was erased"
_WHO: Final = "penstock:refused"
_KEPT: Final = 16

__all__ = (
    "REFUSED",
    "Consent",
    "OptOuts",
    "OptedOut",
    "flag_refused",
    "mark_refused",
    "mark_subjects",
    "nobody_opted_out",
)


def mark_subjects(frame: DataFrame, stream: Stream, marks: SubjectMarks | None) -> DataFrame:
    """Return parsed records with the number of whom they are about; null where they say nobody."""
    if stream.subject is None or marks is None:
        return frame.withColumn(SUBJECT, F.lit(None).cast("bigint"))
    kind = schema_of(stream)[stream.subject].type
    return frame.withColumn(
        SUBJECT, _number(frame, marks, write_text(kind, _named(stream.subject)))
    )


def mark_refused(frame: DataFrame, stream: Stream, refusing: frozenset[str]) -> DataFrame:
    """Return parsed records; those of people who refuse have a problem."""
    if stream.subject is None or not refusing:
        return frame
    if not isinstance(refusing, OptedOut):
        raise TypeError("people who refuse are told as OptedOut, with what marks people")
    people = _list_people(frame.sparkSession, refusing)
    marked = frame if SUBJECT in frame.columns else mark_subjects(frame, stream, refusing.marks)
    joined = marked.join(F.broadcast(people), _named(SUBJECT) == _named(_WHO), "left")
    found = F.coalesce(_named(PROBLEM), F.when(_named(_WHO).isNotNull(), F.lit(REFUSED)))
    return joined.withColumn(PROBLEM, found).select(*(f"`{name}`" for name in frame.columns))


def flag_refused(frame: DataFrame, stream: Stream, refusing: OptedOut, flag: str) -> DataFrame:
    """Return parsed records with a flag: somebody who refuses is meant, or nobody can tell who.

    A stream without a subject says that its records are about nobody.
    """
    if stream.subject is None or not refusing:
        return frame.withColumn(flag, F.lit(False))  # noqa: FBT003
    people = _list_people(frame.sparkSession, refusing)
    marked = frame if SUBJECT in frame.columns else mark_subjects(frame, stream, refusing.marks)
    joined = marked.join(F.broadcast(people), _named(SUBJECT) == _named(_WHO), "left")
    meant = _named(_WHO).isNotNull() | _named(SUBJECT).isNull()
    return joined.withColumn(flag, meant).drop(_WHO)


def _number(frame: DataFrame, marks: SubjectMarks, text: Column) -> Column:
    builder = ColumnBuilder(frame.sparkSession, {}, None)
    return builder.draw(marks.key, text, NUMBER_BITS)


@lru_cache(maxsize=_KEPT)
def _list_people(session: SparkSession, refusing: OptedOut) -> DataFrame:
    """Return those who refuse as a frame; kept, as the next batch is likely to ask the same."""
    return session.createDataFrame(pa.table({_WHO: _numbers(refusing)}))


@lru_cache(maxsize=_KEPT)
def _numbers(refusing: frozenset[str]) -> pa.Array:
    # Two people may share a number: each number once, or a join would double records.
    return pa.array(sorted({number_of(mark) for mark in refusing}), pa.int64())


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
