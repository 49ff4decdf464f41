"""Row-wise views of one stream, written in one pass over a batch.

    parsed rows ─→ columns of all views ─→ tasks in Python, Arrow batches ─┬→ Parquet of a view
                   (what several share stands there once)                  ├→ Parquet of another
                                                                           └→ counts, dead letters

Rules that hold here:
- A batch is read and parsed once, however many views there are, and no copy of it is kept.
- Tasks move columns as they are; no Python runs for a single record.
- What a view does not publish is in no file of it: a task writes the columns of the view and
  the rows that passed its masks, nothing else.
- A task that failed leaves files that no answer names. Only named ones get a name that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks import Chain
from penstock.masks.spark import ChainLayout, JointMasks
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.records.columns import ARROW_TYPES, OFFSET, PROBLEM
from penstock.pipeline.session import freeze_loaded

# So many rows are gathered for one row group.
GROUP: Final = 1 << 17
ANSWER: Final = pa.schema(
    [
        ("view", pa.int32()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Branch:
    """One of the views: its masks, and the folder for its files, which does not exist yet."""

    chain: Chain
    target: Path


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a batch in one view, and where its files are."""

    target: Path
    published: int
    dead: list[DeadLetter]


def write_together(frame: DataFrame, branches: Sequence[Branch], topic: str) -> list[Written]:
    """Write parsed rows as files of all views; say for each what became of them."""
    masks = _compile(frame.sparkSession, tuple(branch.chain for branch in branches), topic)
    parts = [
        _Part(str(branch.target), layout, _schema(branch.chain))
        for branch, layout in zip(branches, masks.layouts, strict=True)
    ]
    for branch in branches:
        branch.target.mkdir()

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return _write_task(batches, parts)

    answer = masks.apply(frame, [OFFSET]).mapInArrow(write, _DDL).toArrow()
    return [_take_stock(answer, number, branch) for number, branch in enumerate(branches)]


@lru_cache(maxsize=32)
def _compile(session: SparkSession, chains: tuple[Chain, ...], topic: str) -> JointMasks:
    """Return the masks of some views; kept, as the next batch is likely to need the same."""
    identity = F.concat(F.lit(f"{topic}/"), _named(OFFSET).cast("string"))
    return JointMasks(session, chains, identity=identity, problem=_named(PROBLEM))


_DDL: Final = "view int, file string, rows long, offset long, reason string"


@dataclass(frozen=True, slots=True)
class _Part:
    """What a task needs to know of a view."""

    target: str
    layout: ChainLayout
    schema: Any


def _schema(chain: Chain) -> pa.Schema:
    return pa.schema([(name, ARROW_TYPES[found.type]) for name, found in chain.output.items()])


class _File:
    """The file of one view that a task writes, from the first row on."""

    def __init__(self, part: _Part, name: str) -> None:
        self.name = name
        self.rows = 0
        self._part = part
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the rows that passed the masks; return those that did not."""
        reasons = batch.column(self._part.layout.reason)
        refused = None
        if reasons.null_count < batch.num_rows:
            refused = batch.filter(reasons.is_valid())
            batch = batch.filter(reasons.is_null())
        if batch.num_rows:
            columns = [batch.column(name) for name in self._part.layout.columns]
            self._waiting.append(pa.table(columns, schema=self._part.schema))
            self._count += batch.num_rows
            if self._count >= GROUP:
                self._write()
        return refused

    def close(self) -> bool:
        """Finish the file; returns whether there is one."""
        if self._count:
            self._write()
        if self._writer is None:
            return False
        self._writer.close()
        return True

    def _write(self) -> None:
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(
                Path(self._part.target) / self.name,
                self._part.schema,
                compression="zstd",
                compression_level=1,
            )
        self._writer.write_table(pa.concat_tables(self._waiting))
        self.rows += self._count
        self._waiting, self._count = [], 0


def _write_task(
    batches: Iterable[pa.RecordBatch], parts: Sequence[_Part]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs in a task of Spark only")
    # The attempt stands in the name: a task that is done again meets no file of its own.
    name = f".{context.partitionId():05}-{context.taskAttemptId()}"
    files = [_File(part, name) for part in parts]
    for batch in batches:
        for view, (file, part) in enumerate(zip(files, parts, strict=True)):
            refused = file.add(batch)
            if refused is not None:
                yield _answer(view, refused, part.layout.reason)
    made = [(view, file) for view, file in enumerate(files) if file.close()]
    yield pa.record_batch(
        [
            pa.array([view for view, _ in made], pa.int32()),
            pa.array([file.name for _, file in made], pa.string()),
            pa.array([file.rows for _, file in made], pa.int64()),
            pa.nulls(len(made), pa.int64()),
            pa.nulls(len(made), pa.string()),
        ],
        schema=ANSWER,
    )


def _answer(view: int, refused: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    count = refused.num_rows
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(view, pa.int32()), count),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.int64()),
            refused.column(OFFSET),
            refused.column(reason),
        ],
        schema=ANSWER,
    )


def _take_stock(answer: pa.Table, number: int, branch: Branch) -> Written:
    own = answer.filter(pc.equal(answer["view"], number))
    files = own.filter(own["file"].is_valid())
    for place, name in enumerate(sorted(files["file"].to_pylist())):
        (branch.target / name).rename(branch.target / f"part-{place:05}.parquet")
    refused = own.filter(own["offset"].is_valid())
    dead = [
        DeadLetter(offset, reason)
        for offset, reason in zip(
            refused["offset"].to_pylist(), refused["reason"].to_pylist(), strict=True
        )
    ]
    return Written(branch.target, sum(files["rows"].to_pylist()), dead)


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
