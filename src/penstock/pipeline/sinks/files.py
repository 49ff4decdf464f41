"""What every sink of a view can do, and the sinks that are files of the view's folder.

    write ─→ commit ─→ deliver

Rules that hold here:
- What a batch writes are files that do not count yet. The commit makes them count, and after
  it they are delivered: shown to those who read the view elsewhere than in its folder.
- After a crash the newest commit is delivered once more. `deliver` is idempotent: it finds
  out what is there already and adds the rest, so that each record is there once.
- Whatever a sink needs for that stands in the commit (`begin`), or in the store it delivers
  to, changed in one step with the records.
- The file of a task gets its name when it is whole; a task that is done again replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from penstock.masks.fields import Field, FieldType, avro_schema
from penstock.masks.spark import spark_type
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.published import read_file

_KINDS = {spark_type(kind): kind for kind in FieldType}
SHOWN: Final = 20


class Sink(Protocol):
    """How a view's records leave."""

    def write(self, frame: DataFrame, target: Path) -> None:
        """Write rows as files `part-*` into the folder `target`, which is not there yet."""

    def begin(self) -> int:
        """Return where the next batch begins in the store that records are delivered to."""

    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        """Show what a commit made count; `again` after a crash or a pause."""


OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "parquet": {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"},
    "json": {"ignoreNullFields": "false"},
    "csv": {"header": "true"},
}


class FileSink:
    """Files that Spark writes by itself."""

    def __init__(self, form: str) -> None:
        self._form = form

    def write(self, frame: DataFrame, target: Path) -> None:
        """Write rows as files."""
        frame.write.format(self._form).options(**OPTIONS[self._form]).save(str(target))

    def begin(self) -> int:
        """Return nothing of use: files need no place."""
        return 0

    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        """Do nothing: files are where they are read."""


class ParquetSink(FileSink):
    """Parquet files."""

    def __init__(self) -> None:
        super().__init__("parquet")


class AvroSink(FileSink):
    """Avro files, compressed."""

    def __init__(self) -> None:
        super().__init__("avro")

    @override
    def write(self, frame: DataFrame, target: Path) -> None:
        target.mkdir()
        fields = {
            item.name: Field(_KINDS[item.dataType], optional=True) for item in frame.schema.fields
        }
        schema = avro_schema(fields, "View")

        def write_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _write_part(batches, schema, target)

        # Under Avro's names: Spark takes no column with a dot in its name here.
        named = frame.toDF(*(field["name"] for field in schema["fields"]))
        named.mapInArrow(write_part, "rows long").collect()


def _write_part(
    batches: Iterable[pa.RecordBatch], schema: dict[str, Any], target: Path
) -> pa.RecordBatch:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs in a task of Spark only")
    count = 0

    def records() -> Iterator[dict[str, Any]]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield from batch.to_pylist()

    number = context.partitionId()
    path = target / f"part-{number:05}.avro"
    partial = target / f".{path.name}.{context.taskAttemptId()}"
    with partial.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), records(), codec="deflate")
    if count:
        partial.replace(path)
    else:
        partial.unlink()
    return pa.record_batch({"rows": pa.array([count], pa.int64())})


class ConsoleSink(ParquetSink):
    """Parquet files, shown as they come."""

    def __init__(self, title: str, target: Console | None = None) -> None:
        super().__init__()
        self._title = title
        self._target = target or Console()

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        if again or not files:
            return
        found = itertools.chain.from_iterable(read_file(path) for path in files)
        records = list(itertools.islice(found, SHOWN + 1))
        more = ", the first of them" if len(records) > SHOWN else ""
        shown = Table()
        for name in records[0]:
            shown.add_column(Text(name))
        for record in records[:SHOWN]:
            shown.add_row(*(Text("" if item is None else str(item)) for item in record.values()))
        title = f"{self._title}, batch {commit.sequence}{more}"
        self._target.print(Text(title, style="bold"), shown, sep="\n")
