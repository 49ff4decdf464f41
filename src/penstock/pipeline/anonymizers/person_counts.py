"""How many persons stand behind published groups, as counted when they were published.

    persons/SEQUENCE.parquet    one line per group of the batch: its generalized values, the
                                codes they lie between, records, and persons

Rules that hold here:
- These counts are private: the published files do not tell who a record is about, so that
  persons cannot be counted there. They stand outside `data`, readable by the owner alone.
- Counts are of one batch. A group that grows over several batches has at least as many
  persons as in its largest; sums would count some twice.
- Written before the batch counts, under its number; what a crash left is written over.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.pipeline.records.columns import Integers

PERSONS: Final = "penstock:persons"
RECORDS: Final = "penstock:records"
LOW: Final = "penstock:low:"
HIGH: Final = "penstock:high:"
FOLDER: Final = "persons"
DIGITS: Final = 12


def count_persons(groups: Integers, persons: Integers, number: int) -> Integers:
    """Return how many different persons each of a number of groups has."""
    order = np.lexsort((persons, groups))
    groups, persons = groups[order], persons[order]
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = (np.diff(groups) != 0) | (np.diff(persons) != 0)
    return np.bincount(groups[new], minlength=number)


def write_persons(folder: Path, sequence: int, groups: pa.Table | None) -> None:
    """Keep the counts of a batch; None where there are none."""
    path = _path(folder, sequence)
    if groups is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    made = io.BytesIO()
    pyarrow.parquet.write_table(groups, made, compression="zstd")
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(made.getvalue())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_persons(folder: Path, sequences: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the counts of these batches, as far as there are any."""
    for sequence in sequences:
        path = _path(folder, sequence)
        if path.exists():
            yield pyarrow.parquet.read_table(path)


def _path(folder: Path, sequence: int) -> Path:
    return folder / FOLDER / f"{sequence:0{DIGITS}}.parquet"
