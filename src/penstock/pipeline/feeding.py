"""Feeds files into the event log: CSV, JSON lines and Parquet become records of a stream.

Rules that hold here:
- A file must have every field that the stream requires, else nothing of it is fed. Columns
  that the stream does not have are left out.
- A cell that is no value of its field's type goes on as text, so that its record becomes a
  dead letter of each view, with the reason, and is not dropped here.
- Memory is bounded by a block of the file, whatever its size.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.eventlog.lines import MAX_LINE
from penstock.model.kinds import Stream
from penstock.model.kinds.stream import StreamField

BLOCK: Final = 4 << 20
ROWS: Final = 50_000
ENDINGS: Final = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
# Between the values of a JSON line control characters are space, and within one not allowed.
_SPACES: Final = b" " * 32 + bytes(range(32, 256))
# What JSON takes for a number or truth value of a type; everything else is written as text.
_PATTERNS: Final = {
    "int": r"^-?(0|[1-9][0-9]*)$",
    "long": r"^-?(0|[1-9][0-9]*)$",
    "float": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
    "double": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
    "boolean": r"^(true|false)$",
}


def feed(path: Path, stream: Stream, topic: Topic) -> int:
    """Append the records of a file to a topic; return how many."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(
            f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
        ) from None
    fed = 0
    for values in _read(path, stream):
        fed += len(topic.append(values))
    return fed


def _read(path: Path, stream: Stream) -> Iterator[list[bytes]]:
    match path.suffix:
        case ".csv":
            yield from _read_csv(path, stream)
        case ".parquet":
            yield from _read_parquet(path, stream)
        case ".json" | ".jsonl" | ".ndjson":
            yield from _read_lines(path)
        case _:
            fix = f"files end in {', '.join(ENDINGS)}"
            raise UsageError(f"what {quote(path.name)} holds is not known", fix=fix)


def _read_csv(path: Path, stream: Stream) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        header = file.readline(MAX_LINE).decode(errors="replace").strip()
    names = next(csv.reader([header]), [])
    _check_columns(names, stream, path)
    options = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
    )
    try:
        reader = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=BLOCK),
            convert_options=options,
        )
        for batch in reader:
            yield from _pieces(_to_json(batch, stream))
    except pa.ArrowInvalid:
        raise UsageError(
            f"{quote(path.name)} is no well-formed CSV file in UTF-8",
            fix="give every line as many cells as the first",
        ) from None


def _read_parquet(path: Path, stream: Stream) -> Iterator[list[bytes]]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pa.ArrowInvalid:
        raise UsageError(f"{quote(path.name)} is no Parquet file", fix="check the file") from None
    _check_columns(file.schema_arrow.names, stream, path)
    named = [field.name for field in stream.fields if field.name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=ROWS, columns=named):
        columns = {
            name: pc.cast(column, pa.string())
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        yield from _pieces(_to_json(pa.record_batch(columns), stream, empty_is_null=False))


def _read_lines(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        values: list[bytes] = []
        while line := file.readline(MAX_LINE):
            value = line.strip().translate(_SPACES)
            if value:
                values.append(value)
            if len(values) >= ROWS:
                yield values
                values = []
        yield values


def _check_columns(names: list[str], stream: Stream, path: Path) -> None:
    missing = [it.name for it in stream.fields if not it.optional and it.name not in names]
    if missing:
        raise UsageError(
            f"{quote(path.name)} has no column {quote(missing[0])}, which the stream requires",
            fix=f"columns there are {', '.join(names[:20]) or 'none'}",
        )


def _to_json(
    batch: pa.RecordBatch, stream: Stream, *, empty_is_null: bool = True
) -> pa.BinaryArray:
    parts: list[Any] = []
    for field in stream.fields:
        if field.name in batch.schema.names:
            lead = "," if parts else "{"
            parts += [
                f'{lead}"{_escape(field.name)}":',
                _write(batch.column(field.name), field, empty_is_null=empty_is_null),
            ]
    parts.append("}")
    joined = pc.binary_join_element_wise(
        *parts, "", null_handling="replace", null_replacement="null"
    )
    return pc.cast(joined, pa.binary())


def _write(column: pa.Array, field: StreamField, *, empty_is_null: bool) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(column, r"[\x00-\x1f]")).as_py():
        for code in range(32):
            escaped = pc.replace_substring(escaped, chr(code), f"\\u{code:04x}")
    made = pc.binary_join_element_wise('"', escaped, '"', "")
    if field.type in _PATTERNS:
        made = pc.if_else(pc.match_substring_regex(column, _PATTERNS[field.type]), column, made)
    if empty_is_null and (field.optional or field.type != "string"):
        made = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), made)
    return made


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _pieces(lines: pa.BinaryArray) -> Iterator[list[bytes]]:
    for start in range(0, len(lines), ROWS):
        yield lines.slice(start, ROWS).to_pylist()
