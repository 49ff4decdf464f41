"""What stateful anonymizers have in common: they take rows in, hold some back, release others.

Rules that hold here:
- Rows are Arrow tables with the fields of the view and some columns more: offset, person,
  time, and the number by which people who opt out are found. A step gets them in the order
  of their offsets.
- Every row leaves a step: published, as often as the step says, or as a dead letter. So do
  rows that a step holds of people who opt out meanwhile.
- `save` gives everything that a step knows; a step that is loaded from it goes on as if
  nothing had happened.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.pipeline.records.columns import NO_TIME, OFFSET, SUBJECT, Booleans, Integers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be published: where it stands in the stream, and why."""

    offset: int
    reason: str


@dataclass(slots=True)
class StepOutcome:
    """What leaves a step."""

    rows: pa.Table
    dead: list[DeadLetter] = field(default_factory=list)
    loss: float = 0.0
    groups: pa.Table | None = None
    """How many persons are behind each group, where the step counts them; see `risk_persons`."""
    parts: pa.Table | None = None
    """Of a step that is one of several shards: its part of what is made of all of them."""


class StatefulStep(Protocol):
    """A stateful step, with what it holds back."""

    @property
    def held(self) -> int:
        """How many rows are held back."""

    def feed(self, rows: pa.Table, now: int, newest: int = NO_TIME) -> StepOutcome:
        """Take rows in, and return what leaves.

        For windows, all rows that arrived before `now` are here: NO_TIME, where that is not
        known. For others it is what the clock says. `newest` is the newest time of the rows
        that all shards get together: by it, a window is over in all of them at once.
        """

    def flush(self) -> StepOutcome:
        """End the stream: everything leaves."""

    def forget(self, subjects: Integers, reason: str) -> list[DeadLetter]:
        """Let the rows of some people go unpublished, of those that are held back."""

    def save(self) -> bytes:
        """Return everything the step knows."""

    @property
    def due(self) -> int | None:
        """The time of the clock from which on something leaves by it alone, if ever."""


def write_table(table: pa.Table) -> bytes:
    """Write a table as bytes."""
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


def read_table(content: bytes) -> pa.Table:
    """Read what `write_table` wrote."""
    with pa.ipc.open_stream(pa.BufferReader(content)) as reader:
        return reader.read_all()


def offsets_of(table: pa.Table) -> list[int]:
    """Return the offsets of rows."""
    found: list[int] = table[OFFSET].to_pylist()
    return found


def find_opted_out(rows: pa.Table, subjects: Integers) -> Booleans:
    """Say which rows are about some of these people; those about nobody are not."""
    known = pa.array(subjects, pa.int64())
    found = pc.is_in(rows[SUBJECT], value_set=known, skip_nulls=True)
    answer: Booleans = found.to_numpy(zero_copy_only=False).astype(np.bool_)
    return answer


def split_off(rows: pa.Table, subjects: Integers, reason: str) -> tuple[pa.Table, list[DeadLetter]]:
    """Return rows without those of some people, and letters for these."""
    if not subjects.size or not rows.num_rows:
        return rows, []
    found = find_opted_out(rows, subjects)
    letters = [DeadLetter(offset, reason) for offset in offsets_of(rows.filter(pa.array(found)))]
    return rows.filter(pa.array(~found)).combine_chunks(), letters
