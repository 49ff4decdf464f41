"""What a view has published, and how many persons stand behind its groups.

    persons/SEQUENCE.parquet    one line per group of the batch: its generalized values, the
                                codes they lie between, records, and persons

Rules that hold here:
- Counts of persons are private: the published files do not tell who a record is about, so
  that persons cannot be counted there. They stand outside `data`, readable by the owner alone.
- Counts are of one batch. A group that grows over several batches has at least as many
  persons as in its largest; sums would count some twice.
- Written before the batch counts, under its number; what a crash left is written over.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog import Topic
from penstock.hadoop import write_whole
from penstock.pipeline.sinks.commits import ViewFolder

CHUNK: Final = 10_000
PERSONS_FOLDER: Final = "persons"
DIGITS: Final = 12
_ROWS: Final = 1 << 12


def read_published(folder: ViewFolder) -> Iterator[dict[str, Any]]:
    """Yield the published records, those of the newest files first."""
    if folder.data.is_dir():
        for path in sorted(folder.data.iterdir(), reverse=True):
            # A Delta table has a folder of its own there.
            if path.is_file():
                yield from read_file(path)


def read_topic(topic: Topic) -> Iterator[dict[str, Any]]:
    """Yield the records of a view's topic, the newest first."""
    end, first = topic.next_offset, topic.first_offset
    while end > first:
        start = max(first, end - CHUNK)
        for record in reversed(list(topic.read(start, end - start))):
            yield json.loads(record.value)
        end = start


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one file."""
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            # Who reads a few records pays for a few.
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(_ROWS):
                yield from batch.to_pylist()
    elif path.suffix == ".json":
        with path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)
    elif path.suffix == ".avro":
        with path.open("rb") as file:
            reader: Iterator[Any] = fastavro.reader(file)
            yield from reader
    else:
        with path.open(encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)


def write_persons(folder: Path, sequence: int, groups: pa.Table | None) -> None:
    """Keep the counts of a batch; None where there are none."""
    path = _path(folder, sequence)
    if groups is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    made = io.BytesIO()
    pyarrow.parquet.write_table(groups, made, compression="zstd")
    write_whole(path, made.getvalue())


def read_persons(folder: Path, sequences: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the counts of these batches, as far as there are any."""
    for sequence in sequences:
        path = _path(folder, sequence)
        if path.exists():
            yield pyarrow.parquet.read_table(path)


def _path(folder: Path, sequence: int) -> Path:
    return folder / PERSONS_FOLDER / f"{sequence:0{DIGITS}}.parquet"
