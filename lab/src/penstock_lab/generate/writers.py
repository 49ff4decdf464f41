"""Writes batches of records as CSV, JSON lines or Parquet, to a file or a pipe.

Rules that hold here:
- What is written streams: a batch is gone before the next one is made.
- A file appears under its name when it is complete; standard output takes no Parquet, whose
  end would be missing if the reader goes away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.errors import UnavailableError, UsageError, quote

FORMATS: Final = ("csv", "json", "parquet")
STANDARD_OUTPUT: Final = "-"


def write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, target: str) -> int:
    """Write batches to a file, or to standard output where the target is `-`; return the rows."""
    if target == STANDARD_OUTPUT:
        if form == "parquet":
            raise UsageError("Parquet cannot go to standard output", fix="name a file with --out")
        rows = _write_to(batches, schema, form, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return rows
    path = Path(target)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            rows = _write_to(batches, schema, form, file)
        partial.replace(path)
    except OSError as error:
        raise UnavailableError(
            f"{quote(path)} cannot be written: {error.strerror}", fix="name another file"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _write_to(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, file: IO[bytes]
) -> int:
    rows = 0
    if form == "json":
        for batch in batches:
            rows += batch.num_rows
            file.write(join_lines(to_json_lines(batch)))
        return rows
    if form == "csv":
        options = pyarrow.csv.WriteOptions(quoting_style="needed")
        writer: Any = pyarrow.csv.CSVWriter(file, schema, write_options=options)
    else:
        writer = pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")
    with writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch)
    return rows


def to_json_lines(batch: pa.RecordBatch) -> pa.BinaryArray:
    """Return each record as one line of JSON, all at once; null fields are left out of none."""
    parts: list[Any] = []
    for index, field in enumerate(batch.schema):
        lead = "{" if index == 0 else ","
        parts += [f'{lead}"{escape_json(field.name)}":', _write_values(batch.column(index))]
    parts.append("}")
    joined = pc.binary_join_element_wise(
        *parts, "", null_handling="replace", null_replacement="null"
    )
    return pc.cast(joined, pa.binary())


def join_lines(lines: pa.BinaryArray) -> bytes | pa.Buffer:
    """Return all lines as one piece, each with its line end."""
    if not len(lines):
        return b""
    ended = pc.binary_join_element_wise(
        lines, pa.scalar(b"\n", lines.type), pa.scalar(b"", lines.type)
    )
    # The values of a fresh array lie side by side: what is between the first and last offset.
    offsets = np.frombuffer(ended.buffers()[1], dtype=np.int32)
    first, last = int(offsets[ended.offset]), int(offsets[ended.offset + len(ended)])
    return ended.buffers()[2].slice(first, last - first)


def escape_json(text: str) -> str:
    """Escape what may not stand in a JSON string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _write_values(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        return pc.binary_join_element_wise('"', escaped, '"', "")
    return pc.cast(column, pa.string())
