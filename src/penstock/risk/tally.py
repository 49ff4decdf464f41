"""Counts how often combinations of values occur, in tables of any length.

    published columns ──Codes──▶ int64 ──Tally──▶ one line per combination, with its count

Rules that hold here:
- Equal values have equal codes and different values different ones: counts are exact, not
  guessed from hashes. A null is a value of its own.
- Memory grows with the number of combinations, not of records; chunks are put together when
  they have become as many as what is there.
- Over the limit of combinations, every second group is left out, as a whole and by chance of
  its values; so what remains are whole groups, and `share` says how much of all they are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog import Topic
from penstock.masks.fields import Schema
from penstock.pipeline.records.columns import ARROW_TYPES, Integers
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.published import read_file

COUNT: Final = "penstock:count"
ROWS: Final = 1 << 16
NULL: Final = int(np.iinfo(np.int64).min)
"""The code of null. As bits of a float it is -0.0, which is counted as 0.0."""

COMBINATIONS: Final = 4_000_000
LEAST_CHUNK: Final = 1 << 17
MOST_HALVINGS: Final = 40


class Codes:
    """The codes of one column: of numbers their bits, of everything else the order of coming."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self.kind: str | None = None
        """What its values are: `integer`, `float` or `text`; None before the first."""

    def encode(self, column: pa.ChunkedArray | pa.Array) -> Integers:
        """Return the codes of values."""
        kind = column.type
        if pa.types.is_integer(kind):
            self.kind = "integer"
            return _to_numpy(pc.fill_null(pc.cast(column, pa.int64()), NULL))
        if pa.types.is_floating(kind):
            self.kind = "float"
            numbers = np.asarray(pc.fill_null(pc.cast(column, pa.float64()), 0.0)) + 0.0
            numbers[np.isnan(numbers)] = np.nan
            codes = numbers.view(np.int64)
            codes[np.asarray(column.is_null())] = NULL
            return codes
        self.kind = "text"
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        found = column.dictionary_encode()
        known = self._known
        table = np.array(
            [known.setdefault(value, len(known)) for value in found.dictionary.to_pylist()],
            dtype=np.int64,
        )
        places = np.asarray(pc.fill_null(found.indices, -1)).astype(np.int64)
        return np.where(places < 0, NULL, table[places] if table.size else NULL)

    def decode(self, codes: Integers) -> list[Any]:
        """Return the values of codes; None for null."""
        if self.kind == "text":
            values = dict(zip(self._known.values(), self._known, strict=True))
            return [values.get(code) for code in codes.tolist()]
        numbers = codes.view(np.float64) if self.kind == "float" else codes
        pairs = zip(codes.tolist(), numbers.tolist(), strict=True)
        return [None if code == NULL else number for code, number in pairs]

    def order(self, codes: Integers) -> Integers | None:
        """Return the places of numbers by size; None where values have no order."""
        if self.kind == "text" or (codes == NULL).any():
            return None
        return np.argsort(codes.view(np.float64) if self.kind == "float" else codes)


class Tally:
    """How often each combination of the columns occurs, over all chunks so far.

    `group` are the columns that make a group; only whole groups are left out over the limit.
    """

    def __init__(
        self, group: Sequence[str], more: Sequence[str] = (), *, limit: int = COMBINATIONS
    ) -> None:
        self._group = list(group)
        self._columns = [*self._group, *more]
        self._limit = limit
        self._level = 0
        self._whole = self._empty()
        self._chunks: list[pa.Table] = []
        self._waiting = 0

    @property
    def share(self) -> float:
        """The share of all groups that is counted."""
        return 0.5**self._level

    def add(self, codes: Mapping[str, Integers], rows: int) -> None:
        """Count the rows of a chunk."""
        arrays = {name: codes[name] for name in self._columns}
        count = np.ones(rows, dtype=np.int64)
        self.add_counted(pa.table({**arrays, COUNT: count}))

    def add_counted(self, table: pa.Table) -> None:
        """Count combinations that were counted before."""
        chunk = self._merge([self._thin(table)])
        self._chunks.append(chunk)
        self._waiting += chunk.num_rows
        if self._waiting >= max(LEAST_CHUNK, self._whole.num_rows):
            self._settle()

    def table(self) -> pa.Table:
        """Return the columns and their counts, one line per combination."""
        self._settle()
        return self._whole

    def _settle(self) -> None:
        self._whole = self._merge([self._whole, *self._chunks])
        self._chunks, self._waiting = [], 0
        # A single group cannot be thinned out; it alone may be over the limit.
        while self._group and self._whole.num_rows > self._limit and self._level < MOST_HALVINGS:
            self._level += 1
            self._whole = self._thin(self._whole)

    def _thin(self, table: pa.Table) -> pa.Table:
        if not self._level or not self._group:
            return table
        chance = _scatter([_to_numpy(table[name]) for name in self._group])
        return table.filter(pa.array(chance & np.uint64((1 << self._level) - 1) == 0))

    def _merge(self, tables: list[pa.Table]) -> pa.Table:
        joined = pa.concat_tables(tables)
        if not self._columns:
            total = pc.sum(joined[COUNT]).as_py() or 0
            return pa.table({COUNT: pa.array([total] if total else [], pa.int64())})
        made = joined.group_by(self._columns).aggregate([(COUNT, "sum")])
        return made.rename_columns([*self._columns, COUNT]).combine_chunks()

    def _empty(self) -> pa.Table:
        return pa.schema([(name, pa.int64()) for name in (*self._columns, COUNT)]).empty_table()


def _scatter(columns: Sequence[Integers]) -> npt.NDArray[np.uint64]:
    """Return numbers that depend on all columns and on nothing else, and look random."""
    mixed = np.zeros(columns[0].size, dtype=np.uint64)
    for column in columns:
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + column.view(np.uint64)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _to_numpy(column: pa.ChunkedArray | pa.Array) -> Integers:
    found: Integers = np.asarray(column)
    return found


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
