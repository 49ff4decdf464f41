"""Reads columns of what was published, in tables of bounded length."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog import Topic
from penstock.masks.fields import Schema
from penstock.pipeline.records.columns import ARROW_TYPES
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.published import read_file

ROWS: Final = 1 << 16


def read_columns(path: Path, columns: Sequence[str], schema: Schema) -> Iterator[pa.Table]:
    """Yield the columns of a file; one that is not there is null throughout."""
    if path.suffix == ".parquet":
        file = pyarrow.parquet.ParquetFile(path)
        present = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(ROWS, columns=present):
            table = pa.table({name: batch[name] for name in present})
            for name in columns:
                if name not in present:
                    nothing = pa.nulls(batch.num_rows, ARROW_TYPES[schema[name].type])
                    table = table.append_column(name, nothing)
            yield table if columns else _count_only(batch.num_rows)
        return
    yield from _gather(iter(read_file(path)), columns, schema)


def read_delivered(
    topic: Topic, commit: Commit, count: int, columns: Sequence[str], schema: Schema
) -> Iterator[pa.Table]:
    """Yield the columns of the records that a commit delivered to a topic."""
    key = b"%d" % commit.sequence
    own = (json.loads(it.value) for it in topic.read(commit.begin) if it.key == key)
    yield from _gather(itertools.islice(own, count), columns, schema)


def _gather(
    records: Iterator[dict[str, Any]], columns: Sequence[str], schema: Schema
) -> Iterator[pa.Table]:
    while rows := list(itertools.islice(records, ROWS)):
        made = {name: _column(rows, name, schema) for name in columns}
        yield pa.table(made) if columns else _count_only(len(rows))


def _column(rows: Sequence[Mapping[str, Any]], name: str, schema: Schema) -> pa.Array:
    values = [row.get(name) for row in rows]
    kind = ARROW_TYPES[schema[name].type]
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not number:
        # Equal texts are equal values; what they mean plays no part.
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if any(isinstance(value, str) for value in values):
        return pc.cast(pa.array([value or None for value in values], pa.string()), kind)
    return pa.array(values, kind)


def _count_only(rows: int) -> pa.Table:
    """Return a table of so many rows, where no column is asked for."""
    return pa.table({"": pa.nulls(rows)})
