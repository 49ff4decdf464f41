"""Avro files in the view's folder, written by the tasks themselves, chunk by chunk.

Rules that hold here:
- A task's file gets its name when it is whole; a task that is done again replaces it.
- All fields may be null: what a view suppresses is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame
from typing_extensions import override

from penstock.masks.fields import Field, FieldType
from penstock.masks.spark import spark_type
from penstock.pipeline.records.avro import avro_schema
from penstock.pipeline.sinks.files import FileSink

_KINDS = {spark_type(kind): kind for kind in FieldType}


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
