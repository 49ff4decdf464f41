"""When records happened: the time that they tell, held against the time of their arrival.

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

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import FieldType
from penstock.model.kinds.fields import write_duration

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
