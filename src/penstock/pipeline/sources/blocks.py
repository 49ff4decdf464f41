"""Files in blocks: each can be found and read by itself, and always reads the same.

    csv, json: whole lines of about BLOCK bytes    avro: its own blocks, some together
    parquet:   row groups

Rules that hold here:
- A file is surveyed once, which counts the rows of each block; reading a block gives as many.
- What is wrong with a row, a block or a whole file becomes rows with a problem, so that it is
  counted and told, and the rest is read. Rows of a block that are wrong stand behind the
  others.
- Memory is bounded by a block, but for row groups, whose size is chosen by who writes them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog.files import MAX_VALUE
from penstock.masks.fields import avro_names
from penstock.model.kinds.streams import StreamField
from penstock.pipeline.sources.values import (
    Values,
    columns_to_json,
    join,
    records_to_json,
    sound,
    wrong,
)

BLOCK: Final = 4 << 20
LONGEST: Final = 64 << 20
"""The most bytes between two line ends; what comes after is not read."""
MOST_ROWS: Final = 10_000_000
"""The most rows of a block: a file may say of itself what it likes."""
MOST_BYTES: Final = 1 << 30
"""The most bytes of a row group, unpacked."""
ENDINGS: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".avro": "avro",
}
BOM: Final = b"\xef\xbb\xbf"
CELLS: Final = "the line has more or fewer cells than the first line"
TOO_LONG: Final = f"the record is longer than {MAX_VALUE} bytes"
NO_END: Final = f"the file has no end of line within {LONGEST} bytes; the rest was not read"
NO_NAMES: Final = "the first line of the file names no columns; the file was not read"
TOO_LARGE: Final = f"a row group has over {MOST_ROWS} rows or {MOST_BYTES} bytes; it was not read"
TWICE: Final = "a column of the file stands twice in it; the file was not read"
UNREADABLE: Final = "the file is no well-formed {} file; what is left of it was not read"
DAMAGED: Final = "the part of the file that holds the record cannot be read"


class Block(NamedTuple):
    """Where rows stand in a file: bytes, or numbers of row groups; and how many they are."""

    start: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What a file holds."""

    blocks: tuple[Block, ...]
    header: tuple[str, ...] = ()
    """The names of its columns, where it has them apart from its rows."""
    problem: str | None = None
    """What is wrong with the file; counts as one row behind all others."""
    wrong: int = 0
    """How many rows are known to be wrong already."""


def survey(path: Path, form: str) -> Survey:
    """Find the blocks of a file, and count their rows."""
    with path.open("rb") as file:
        match form:
            case "csv":
                return _survey_csv(file)
            case "json":
                return _survey_lines(file)
            case "parquet":
                return _survey_parquet(file)
            case _:
                return _survey_avro(file)


def read_block(
    path: Path, form: str, header: Sequence[str], block: Block, fields: Sequence[StreamField]
) -> Values:
    """Return the rows of a block."""
    with path.open("rb") as file:
        try:
            found = _limit(_read(file, form, header, block, fields))
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk failed, not the file
            found = wrong(block.rows, DAMAGED)
    # Should it differ from the survey, the file is not what it was.
    return found if len(found.values) == block.rows else wrong(block.rows, DAMAGED)


def _limit(found: Values) -> Values:
    """Refuse records that are too long."""
    long = pc.greater(pc.binary_length(found.values), MAX_VALUE)
    if not pc.any(long).as_py():
        return found
    long = pc.fill_null(long, fill_value=False)
    values = pc.if_else(long, pa.scalar(None, pa.binary()), found.values)
    return Values(values, pc.if_else(long, pa.scalar(TOO_LONG), found.problems))


def _read(
    file: IO[bytes], form: str, header: Sequence[str], block: Block, fields: Sequence[StreamField]
) -> Values:
    if form == "parquet":
        return _read_parquet(file, block, fields)
    if form == "avro":
        return _read_avro(file, block, fields)
    file.seek(block.start)
    data = file.read(block.end - block.start)
    return _read_csv(data, header, fields) if form == "csv" else _read_lines(data)


def _cut(file: IO[bytes], *, quoted: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield a file in pieces of whole lines; the last has no data where no line ends in time."""
    start, size = file.tell(), BLOCK
    while True:
        file.seek(start)
        data = file.read(size)
        if not data:
            return
        if len(data) < size:
            yield start, start + len(data), data
            return
        end = _last_line_end(data, quoted=quoted)
        if not end and size >= LONGEST:
            # Quotes that do not pair up are part of a cell; then any line end will do.
            end = data.rfind(b"\n") + 1
        if end:
            yield start, start + end, data[:end]
            start, size = start + end, BLOCK
        elif size >= LONGEST:
            yield start, start, b""
            return
        else:
            size *= 2


def _last_line_end(data: bytes, *, quoted: bool) -> int:
    """Return where the last whole line ends; a line end between quotes is part of a cell."""
    last = data.rfind(b"\n") + 1
    if not quoted or not last or b'"' not in data:
        return last
    found = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(found == ord("\n"))
    before = np.searchsorted(np.flatnonzero(found == ord('"')), ends)
    outside = ends[before % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _survey_csv(file: IO[bytes]) -> Survey:
    line = file.readline(MAX_VALUE)
    names = next(csv.reader([line.removeprefix(BOM).decode(errors="replace")]), [])
    header = tuple(names)
    if line and not any(header):
        return Survey((), (), NO_NAMES)
    if len(set(header)) < len(header):
        return Survey((), header, TWICE)
    blocks, problem, bad = [], None, 0
    for start, end, data in _cut(file, quoted=True):
        if not data:
            problem = NO_END
        else:
            table, invalid = _parse_csv(data, header, ())
            blocks.append(Block(start, end, table.num_rows + invalid))
            bad += invalid
    return Survey(tuple(blocks), header, problem, bad)


def _parse_csv(data: bytes, header: Sequence[str], wanted: Sequence[str]) -> tuple[pa.Table, int]:
    """Return the wanted columns of lines, and how many lines have a wrong number of cells."""
    invalid = 0

    def count(_: Any) -> str:
        nonlocal invalid
        invalid += 1
        return "skip"

    included = [name for name in header if name in wanted] or list(header[:1])
    options = pyarrow.csv.ReadOptions(
        column_names=list(header), use_threads=False, block_size=len(data) + 1
    )
    table = pyarrow.csv.read_csv(
        pa.BufferReader(data if data.endswith(b"\n") else data + b"\n"),
        read_options=options,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=count),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(included, pa.binary()),
            include_columns=included,
            strings_can_be_null=False,
        ),
    )
    return table, invalid


def _read_csv(data: bytes, header: Sequence[str], fields: Sequence[StreamField]) -> Values:
    table, invalid = _parse_csv(data, header, [field.name for field in fields])
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    good = columns_to_json(columns, table.num_rows, fields, empty_is_null=True)
    return join([good, wrong(invalid, CELLS)]) if invalid else good


def _survey_lines(file: IO[bytes]) -> Survey:
    if file.read(len(BOM)) != BOM:
        file.seek(0)
    blocks, problem, bad = [], None, 0
    for start, end, data in _cut(file, quoted=False):
        if not data:
            problem = NO_END
        else:
            found = _limit(_read_lines(data))
            blocks.append(Block(start, end, len(found.values)))
            bad += len(found.problems) - found.problems.null_count
    return Survey(tuple(blocks), (), problem, bad)


def _read_lines(data: bytes) -> Values:
    lines = [line for line in map(bytes.strip, data.split(b"\n")) if line]
    return sound(pa.array(lines, pa.binary()))


def _survey_parquet(file: IO[bytes]) -> Survey:
    try:
        data = pyarrow.parquet.ParquetFile(file)
    except (pa.ArrowException, OSError):
        return Survey((), (), UNREADABLE.format("Parquet"))
    names = tuple(data.schema_arrow.names)
    if len(set(names)) < len(names):
        return Survey((), names, TWICE)
    blocks: list[Block] = []
    for number in range(data.metadata.num_row_groups):
        group = data.metadata.row_group(number)
        if group.num_rows > MOST_ROWS or group.total_byte_size > MOST_BYTES:
            return Survey(tuple(blocks), names, TOO_LARGE)
        blocks.append(Block(number, number + 1, group.num_rows))
    return Survey(tuple(blocks), names)


def _read_parquet(file: IO[bytes], block: Block, fields: Sequence[StreamField]) -> Values:
    data = pyarrow.parquet.ParquetFile(file)
    names = [field.name for field in fields if field.name in data.schema_arrow.names]
    table = data.read_row_group(block.start, columns=names)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    return columns_to_json(columns, block.rows, fields, empty_is_null=False)


def _survey_avro(file: IO[bytes]) -> Survey:
    blocks: list[Block] = []
    names: tuple[str, ...] = ()
    try:
        reader = fastavro.block_reader(file)
        schema: Any = reader.writer_schema
        names = tuple(field["name"] for field in schema["fields"])
        for found in reader:
            if not 0 <= found.num_records <= MOST_ROWS:
                return Survey(tuple(blocks), names, UNREADABLE.format("Avro"), 1)
            end = found.offset + found.size
            if blocks and blocks[-1].end - blocks[-1].start < BLOCK:
                before = blocks.pop()
                blocks.append(Block(before.start, end, before.rows + found.num_records))
            else:
                blocks.append(Block(found.offset, end, found.num_records))
    except Exception:  # noqa: BLE001 - bytes from outside make decoders fail in many ways
        return Survey(tuple(blocks), names, UNREADABLE.format("Avro"), 1)
    return Survey(tuple(blocks), names)


def _read_avro(file: IO[bytes], block: Block, fields: Sequence[StreamField]) -> Values:
    first = next(iter(fastavro.block_reader(file))).offset
    file.seek(0)
    header = file.read(first)
    file.seek(block.start)
    rows: Any = fastavro.reader(io.BytesIO(header + file.read(block.end - block.start)))
    named = avro_names(field.name for field in fields)
    theirs = {avro: ours for ours, avro in named.items()} | {name: name for name in named}
    return records_to_json(list(rows), theirs)
