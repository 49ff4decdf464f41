"""The columns that the pipeline adds to the fields of records, and the Arrow types of fields.

All names begin with `penstock:`, which no field of a stream may (`penstock.model.kinds`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.masks.fields import FieldType, Schema

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

OFFSET: Final = "penstock:offset"
MILLISECONDS: Final = "penstock:milliseconds"
"""When the record arrived."""
VALUE: Final = "penstock:value"
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
