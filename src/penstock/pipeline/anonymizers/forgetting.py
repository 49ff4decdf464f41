"""Rows that a collective step holds of people who do not want to be in its view any more."""

from __future__ import annotations

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.pipeline.anonymizers.stateful import DeadLetter, offsets_of
from penstock.pipeline.records.columns import SUBJECT, Booleans, Integers


def find_objectors(rows: pa.Table, subjects: Integers) -> Booleans:
    """Say which rows are about some of these people; those about nobody are not."""
    known = pa.array(subjects, pa.int64())
    found = pc.is_in(rows[SUBJECT], value_set=known, skip_nulls=True)
    answer: Booleans = found.to_numpy(zero_copy_only=False).astype(np.bool_)
    return answer


def split_off(rows: pa.Table, subjects: Integers, reason: str) -> tuple[pa.Table, list[DeadLetter]]:
    """Return rows without those of some people, and letters for these."""
    if not subjects.size or not rows.num_rows:
        return rows, []
    found = find_objectors(rows, subjects)
    letters = [DeadLetter(offset, reason) for offset in offsets_of(rows.filter(pa.array(found)))]
    return rows.filter(pa.array(~found)).combine_chunks(), letters
