"""Files of views, written by Spark's tasks in one pass over a batch.

    parsed rows ─→ columns of all views ─→ tasks in Python, Arrow batches ─┬→ Parquet of a view
                   (what several share stands there once)                  ├→ Parquet of another
                                                                           └→ counts, dead letters
    what left a stateful operator ─→ tasks in Python ─→ Parquet of the view, counts, dead letters

Rules that hold here:
- A batch is read and parsed once, however many views there are, and no copy of it is kept.
- Tasks move columns as they are; no Python runs for a single record.
- What a view does not publish is in no file of it: a task writes the columns of the view and
  the rows that passed its masks, nothing else.
- A task that failed leaves files that no answer names. Only named ones get a name that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from pyspark import StorageLevel, TaskContext
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks import Chain
from penstock.masks.fields import Schema
from penstock.masks.spark import ChainLayout, JointMasks
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.dataframes.shard_step import REPORT, REPORTED
from penstock.pipeline.dataframes.shards import REASON
from penstock.pipeline.records.columns import ARROW_TYPES, OFFSET, PROBLEM
from penstock.pipeline.session import freeze_loaded
from penstock.pipeline.sinks.commits import ShardCount

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
        _Part(str(branch.target), layout, _schema(branch.chain.output))
        for branch, layout in zip(branches, masks.layouts, strict=True)
    ]
    for branch in branches:
        branch.target.mkdir()

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return _write_task(batches, parts)

    answer = masks.apply(frame, [OFFSET]).mapInArrow(write, _DDL).toArrow()
    return [_take_stock(answer, number, branch) for number, branch in enumerate(branches)]


@dataclass(frozen=True, slots=True)
class Made:
    """What left the stateful operator of a view in a batch."""

    read: int
    published: int
    dead: list[DeadLetter]
    loss: float
    shards: dict[str, ShardCount]
    groups: list[bytes]
    """Tables of how many persons are behind each group, one for each shard that tells."""


def write_made(frame: DataFrame, fields: Schema, target: Path) -> Made:
    """Write the rows of a view that `make_view` made, in one action; say what became of the rest.

    Where nothing was published, there is no `target`.
    """
    target.mkdir()
    part = _Part(str(target), ChainLayout(tuple(fields), REASON), _schema(fields))
    names = [*fields, OFFSET, REASON, REPORT]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return _write_made(batches, part, names)

    # Spark takes a dot in a name for a way into a field here, so that names travel beside.
    plain = frame.select(*(_named(it) for it in names)).toDF(*(f"c{n}" for n in range(len(names))))
    answer = plain.mapInArrow(write, f"{_DDL}, report {_REPORT_DDL}").toArrow()
    files = _name_files(answer, target)
    if not files.num_rows:
        target.rmdir()
    return _take_reports(answer, sum(files["rows"].to_pylist()))


def write_by_spark(frame: DataFrame, fields: Schema, write: Callable[[DataFrame], None]) -> Made:
    """Do as `write_made`, by a writer of Spark's: for other formats, and other file systems.

    What left the operator is kept meanwhile, so that it runs once.
    """
    rejected, told = _named(REASON), _named(REPORT)
    seen = Observation()
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = frame.where(rejected.isNull() & told.isNull()).observe(
            seen, F.count(F.lit(1)).alias("rows")
        )
        write(rows.select(*(_named(name) for name in fields)))
        others = frame.where(rejected.isNotNull() | told.isNotNull())
        answer = others.select(
            _named(OFFSET).alias("offset"), rejected.alias("reason"), told.alias("report")
        ).toArrow()
    finally:
        frame.unpersist()
    return _take_reports(answer, int(seen.get["rows"]))


def _take_reports(answer: pa.Table, published: int) -> Made:
    reports = [it for it in answer["report"].to_pylist() if it is not None]
    return Made(
        sum(it["read"] for it in reports),
        published,
        _letters(answer),
        sum(it["loss"] for it in reports),
        {str(it["shard"]): (it["held"], it["due"]) for it in reports},
        [it["groups"] for it in reports if it["groups"] is not None],
    )


@lru_cache(maxsize=32)
def _compile(session: SparkSession, chains: tuple[Chain, ...], topic: str) -> JointMasks:
    """Return the masks of some views; kept, as the next batch is likely to need the same."""
    identity = F.concat(F.lit(f"{topic}/"), _named(OFFSET).cast("string"))
    return JointMasks(session, chains, identity=identity, problem=_named(PROBLEM))


_DDL: Final = "view int, file string, rows long, offset long, reason string"
_REPORT_DDL: Final = (
    "struct<shard: int, read: long, held: long, due: long, loss: double, groups: binary>"
)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a task needs to know of a view."""

    target: str
    layout: ChainLayout
    schema: Any


def _schema(fields: Schema) -> pa.Schema:
    return pa.schema([(name, ARROW_TYPES[found.type]) for name, found in fields.items()])


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
    name = _name_file()
    files = [_File(part, name) for part in parts]
    for batch in batches:
        for view, (file, part) in enumerate(zip(files, parts, strict=True)):
            refused = file.add(batch)
            if refused is not None:
                yield _answer(view, refused, part.layout.reason)
    yield _tell_files([(view, file) for view, file in enumerate(files) if file.close()])


def _name_file() -> str:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs in a task of Spark only")
    # The attempt stands in the name: a task that is done again meets no file of its own.
    return f".{context.partitionId():05}-{context.taskAttemptId()}"


def _tell_files(made: Sequence[tuple[int, _File]]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([view for view, _ in made], pa.int32()),
            pa.array([file.name for _, file in made], pa.string()),
            pa.array([file.rows for _, file in made], pa.int64()),
            pa.nulls(len(made), pa.int64()),
            pa.nulls(len(made), pa.string()),
        ],
        schema=ANSWER,
    )


def _write_made(
    batches: Iterable[pa.RecordBatch], part: _Part, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    file = _File(part, _name_file())
    for batch in batches:
        rows = batch.rename_columns(names)
        reports = rows.column(REPORT)
        if reports.null_count < rows.num_rows:
            told = rows.filter(reports.is_valid())
            blank = pa.record_batch(
                [pa.nulls(told.num_rows, it.type) for it in ANSWER], schema=ANSWER
            )
            yield _with_report(blank, told.column(REPORT))
            rows = rows.filter(reports.is_null())
        refused = file.add(rows)
        if refused is not None:
            yield _with_report(_answer(0, refused, REASON))
    yield _with_report(_tell_files([(0, file)] if file.close() else []))


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


def _with_report(answer: pa.RecordBatch, reports: pa.Array | None = None) -> pa.RecordBatch:
    if reports is None:
        reports = pa.nulls(answer.num_rows, REPORTED)
    return pa.record_batch(
        [*answer.columns, reports], schema=ANSWER.append(pa.field("report", REPORTED))
    )


def _take_stock(answer: pa.Table, number: int, branch: Branch) -> Written:
    own = answer.filter(pc.equal(answer["view"], number))
    files = _name_files(own, branch.target)
    return Written(branch.target, sum(files["rows"].to_pylist()), _letters(own))


def _name_files(answer: pa.Table, target: Path) -> pa.Table:
    """Give the files that tasks tell of the names that count; return what they tell."""
    files = answer.filter(answer["file"].is_valid())
    for place, name in enumerate(sorted(files["file"].to_pylist())):
        (target / name).rename(target / f"part-{place:05}.parquet")
    return files


def _letters(answer: pa.Table) -> list[DeadLetter]:
    refused = answer.filter(answer["reason"].is_valid())
    return list(map(DeadLetter, refused["offset"].to_pylist(), refused["reason"].to_pylist()))


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
