"""The columns that the pipeline adds to records, and when records happened.

Their names begin with `penstock:`, which no field of a stream may (`penstock.model.kinds`).

        refused │ told ─────────────── counts as told ─────────── arrival │ as of arrival │ refused
    ────────────┼─────────────────────────────────────────────────────────┼───────────────┼────────▶
       arrival - behind                                                          arrival + ahead

Rules that hold here:
- The time of arrival is the word of who keeps the log, never of who wrote the record: of the
  gateway and the embedded log, of the brokers of Kafka, or when a file was taken in. Of a
  DataFrame whose arrival nobody tells it is when Spark reads it: it came before that.
- No record happens after it arrived. So one record cannot move a watermark or a clock beyond
  the present, whatever it tells; windows end when their time is over.
- `cep.engine` has these rules for the times of events, in line.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import FieldType, Schema
from penstock.model.kinds.fields import write_duration
from penstock.pipeline import records

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

OFFSET: Final = records.OFFSET
MILLISECONDS: Final = records.MILLISECONDS
VALUE: Final = records.VALUE
PROBLEM: Final = "penstock:problem"
"""Why a record is none, where that is known; some sources have the column."""

PERSON: Final = "penstock:person"
TIME: Final = "penstock:time"
"""When it happened, in milliseconds since 1970."""
SUBJECT: Final = "penstock:subject"
"""Numbers that stand for the people whom records are about; see `opt_outs`."""
WINDOW: Final = "penstock:window"
"""When the window began that a row was published with; tells its copies apart."""

NO_TIME: Final = -(2**62)
"""Before every time that records can have."""

ARROW_TYPES: Final = {
    FieldType.STRING: pa.string(),
    FieldType.INT: pa.int32(),
    FieldType.LONG: pa.int64(),
    FieldType.FLOAT: pa.float32(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.DATE: pa.date32(),
    FieldType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: Schema, *more: str) -> pa.Schema:
    """Return the columns of rows: the fields, and numbers that go along."""
    fields = [(name, ARROW_TYPES[found.type]) for name, found in schema.items()]
    return pa.schema([*fields, *((name, pa.int64()) for name in more)])


FAR_AHEAD: Final = "the record tells a time more than {} after its arrival"
FAR_BACK: Final = "the record tells a time more than {} before its arrival"
NO_ARRIVAL: Final = "nobody tells when the record arrived"
NO_MOMENT: Final = "the record tells a time before the year 1"
EARLIEST: Final = -62_135_596_800_000
"""The first moment of the year 1: expressions know none before it."""


def tell_time(field: Column, kind: FieldType) -> Column:
    """Return the time that a field tells, in milliseconds since 1970."""
    return F.unix_millis(field) if kind is FieldType.TIMESTAMP else field


def refuse_time(told: Column, arrived: Column, ahead: int, behind: int | None) -> Column:
    """Return why a time is not believed; null where it is, or where none is told."""
    # Sums are over the time of arrival alone: what is told may be near the ends of a long.
    reason = F.lit(FAR_AHEAD.format(write_duration(ahead)))
    wrong = F.when(arrived.isNull(), F.lit(NO_ARRIVAL)).when(told > arrived + F.lit(ahead), reason)
    if behind is None:
        return wrong.when(told < F.lit(EARLIEST), F.lit(NO_MOMENT))
    reason = F.lit(FAR_BACK.format(write_duration(behind)))
    return wrong.when(told < arrived - F.lit(behind), reason)


def place_in_time(told: Column, arrived: Column) -> Column:
    """Return when a record happened: never after its arrival; null where none is told."""
    return F.when(told.isNotNull(), F.least(told, arrived))
