"""Rewrites what views have published: files of Parquet, JSON, CSV and Avro, and Delta tables.

    data/FILE ──▶ rows of the person? ──▶ FILE without them, on the disk ──▶ in the place of FILE

Rules that hold here:
- A file is replaced as a whole: readers find the old one or the new one. It keeps its name, its
  schema and all other rows, byte for byte where a row is a line.
- Files of a Delta table get new names, for its log says how long each is. One transaction puts
  them in the place of the old ones, which are then removed: there is no way back to them.
- A row is the person's where the field of the trace has exactly that value.
- One at a time erases from a view: two that copied one file would undo each other.
- Copies under way stand outside `data`, where nobody looks for rows.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.errors import PenstockError, UnavailableError, quote
from penstock.eventlog.erasure import Keep, alone
from penstock.hadoop import sync
from penstock.rights.erasure.records import Trace

_PARTIAL: Final = ".erasing-"
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_CELL: Final = re.compile(r'"((?:\\.|[^"\\])*)"(?=,|\Z)|[^,]*', re.DOTALL)
_DELTA: Final = "_delta_log"
_AGAIN: Final = "~"
"""Stands in the name of a file of a Delta table that was rewritten."""


@dataclass(frozen=True, slots=True)
class FileErasure:
    """What was erased from the files of a view."""

    rows: int
    files: int


def erase_files(folder: Path, trace: Trace, keep: Keep) -> FileErasure:
    """Rewrite the files of a view without the rows of a person."""
    data = folder / "data"
    if not folder.is_dir():
        return FileErasure(0, 0)
    with alone(folder, keep):
        for left in folder.glob(f"{_PARTIAL}*"):
            left.unlink()  # somebody was killed over it
        if not data.is_dir():
            return FileErasure(0, 0)
        if (data / _DELTA).is_dir():
            with _readable(data):
                return _erase_delta(folder, data, trace, keep)
        counts = []
        for path in sorted(it for it in data.iterdir() if it.is_file()):
            keep()
            with _readable(path):
                counts.append(_replace(folder, path, trace))
    return FileErasure(sum(counts), sum(map(bool, counts)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Tell of a file that cannot be read, by its name alone."""
    try:
        yield
    except (OSError, PenstockError):
        raise
    except Exception:  # noqa: BLE001 - files that others have touched make decoders fail in many ways
        raise UnavailableError(
            f"what the view has written to {quote(path)} cannot be read",
            fix="move it away, or put what the view has written in its place",
        ) from None


def read_rows(folder: Path, trace: Trace) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a person in the files of a view."""
    data = folder / "data"
    for path in sorted(data.iterdir()) if data.is_dir() else ():
        form = _FORMS.get(path.suffix)
        if path.is_file() and form is not None:
            yield from (row for row in form.read(path) if trace.is_about(row))


def _replace(folder: Path, path: Path, trace: Trace) -> int:
    form = _FORMS.get(path.suffix)
    if form is None or not form.holds(path, trace):
        return 0
    partial = folder / f"{_PARTIAL}{path.name}"
    count = form.copy(path, partial, trace)
    _finish(partial, path)
    partial.replace(path)
    sync(path.parent)
    return count


def _finish(partial: Path, like: Path) -> None:
    """Bring a copy to the disk, for the same readers."""
    partial.chmod(like.stat().st_mode & 0o777)
    handle = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- Parquet ---


def _is_theirs(column: Any, trace: Trace) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    text = pc.cast(column, pa.string())
    return pc.fill_null(pc.equal(text, pa.scalar(trace.value, pa.string())), fill_value=False)


def _find_theirs(rows: Any, trace: Trace) -> Any:
    if trace.value is not None:
        return _is_theirs(rows[trace.columns[0]], trace)
    told = rows.select(list(trace.columns)).to_pylist()
    return pa.array([trace.is_about(row) for row in told], pa.bool_())


def _holds_parquet(path: Path, trace: Trace) -> bool:
    file = pyarrow.parquet.ParquetFile(path)
    if not set(trace.columns) <= set(file.schema_arrow.names):
        return False
    batches = file.iter_batches(columns=list(trace.columns))
    return any(pc.any(_find_theirs(it, trace)).as_py() for it in batches)


def _copy_parquet(path: Path, partial: Path, trace: Trace) -> int:
    file, count = pyarrow.parquet.ParquetFile(path), 0
    with pyarrow.parquet.ParquetWriter(
        partial, file.schema_arrow, compression="zstd", compression_level=1
    ) as writer:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            kept = group.filter(pc.invert(_find_theirs(group, trace)))
            count += group.num_rows - kept.num_rows
            writer.write_table(kept)
    return count


def _read_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


# --- lines: JSON, CSV ---


def _json_rows(file: IO[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for line in file:
        yield line, json.loads(line)


def _split(row: str) -> list[str]:
    """Return the cells of a row as Spark writes them: a backslash escapes between quotes alone."""
    cells, place = list[str](), 0
    while place <= len(row):
        found = _CELL.match(row, place)
        assert found is not None  # noqa: S101 - an empty cell is one, too
        between = found[1]
        cells.append(found[0] if between is None else _ESCAPED.sub(lambda it: it[0][1:], between))
        place = found.end() + 1
    return cells


def _csv_rows(file: IO[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield rows as they stand in the file, and their cells; the first are the names."""
    names: list[str] | None = None
    raw = ""
    for line in file:
        raw += line
        if _ESCAPED.sub("", raw).count('"') % 2:
            continue  # a cell has the line end in it
        cells = _split(raw.removesuffix("\n"))
        if names is None:
            names = cells
            yield raw, None
        else:
            yield raw, dict(zip(names, cells, strict=False))
        raw = ""
    if raw:
        yield raw, None


_Rows = Callable[[IO[str]], Iterator[tuple[str, Mapping[str, Any] | None]]]


def _open(path: Path, mode: str = "r") -> IO[str]:
    # Line ends as they are; what is not UTF-8 as it is.
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline="\n")


@dataclass(frozen=True, slots=True)
class _Form:
    """How files of one ending are read and copied."""

    holds: Callable[[Path, Trace], bool]
    copy: Callable[[Path, Path, Trace], int]
    read: Callable[[Path], Iterator[Mapping[str, Any]]]


def _lines(rows: _Rows) -> _Form:
    def holds(path: Path, trace: Trace) -> bool:
        with _open(path) as file:
            return any(row is not None and trace.is_about(row) for _, row in rows(file))

    def copy(path: Path, partial: Path, trace: Trace) -> int:
        count = 0
        with _open(path) as file, _open(partial, "w") as target:
            for raw, row in rows(file):
                if row is not None and trace.is_about(row):
                    count += 1
                else:
                    target.write(raw)
        return count

    def read(path: Path) -> Iterator[Mapping[str, Any]]:
        with _open(path) as file:
            yield from (row for _, row in rows(file) if row is not None)

    return _Form(holds, copy, read)


# --- Avro ---


def _read_avro(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        reader: Any = fastavro.reader(file)
        called = {it["name"]: it.get("doc", it["name"]) for it in reader.writer_schema["fields"]}
        for row in reader:
            yield {called[name]: value for name, value in row.items()}


def _holds_avro(path: Path, trace: Trace) -> bool:
    return any(trace.is_about(row) for row in _read_avro(path))


def _copy_avro(path: Path, partial: Path, trace: Trace) -> int:
    total = kept = 0
    with path.open("rb") as file, partial.open("wb") as target:
        reader: Any = fastavro.reader(file)
        called = {it["name"]: it.get("doc", it["name"]) for it in reader.writer_schema["fields"]}

        def others() -> Iterator[Any]:
            nonlocal total, kept
            for row in reader:
                total += 1
                if not trace.is_about({called[name]: value for name, value in row.items()}):
                    kept += 1
                    yield row

        fastavro.writer(target, reader.writer_schema, others(), codec=reader.codec)
    return total - kept


# --- Delta ---


def _erase_delta(folder: Path, data: Path, trace: Trace, keep: Keep) -> FileErasure:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - for those who have such tables
        from deltalake.transaction import AddAction, RemoveAction  # noqa: PLC0415
    except ImportError:
        raise UnavailableError(
            "Delta tables need the package deltalake, which is missing",
            fix="pip install deltalake where requests are worked on",
        ) from None

    table = DeltaTable(str(data))
    live = {Path(it).name for it in table.file_uris()}
    count, actions, gone = 0, list[AddAction | RemoveAction](), set[str]()
    for name in sorted(live):
        keep()
        path = data / name
        if not _holds_parquet(path, trace):
            continue
        partial = folder / f"{_PARTIAL}{name}"
        count += _copy_parquet(path, partial, trace)
        _finish(partial, path)
        fresh = f"{_original(name)}{_AGAIN}{uuid.uuid4().hex[:8]}{path.suffix}"
        now = time.time_ns() // 1_000_000
        actions.append(RemoveAction(name, True, now, path.stat().st_size, {}))  # noqa: FBT003
        rows = pyarrow.parquet.read_metadata(partial).num_rows
        actions.append(
            AddAction(
                path=fresh, size=partial.stat().st_size, partition_values={},
                modification_time=now, data_change=True, stats=json.dumps({"numRecords": rows}),
            )
        )  # fmt: skip
        partial.replace(data / fresh)
        live = (live - {name}) | {fresh}
        gone.add(name)
    if actions:
        sync(data)
        table.create_write_transaction(actions, "append", table.schema())
    _remove_replaced(data, live)
    return FileErasure(count, len(gone))


def _remove_replaced(data: Path, live: set[str]) -> None:
    """Remove files that others have replaced, and such that never came to be: nobody reads them.

    A file that is neither may be on its way into the table.
    """
    replaced = {_original(name) for name in live if _AGAIN in name}
    for path in data.glob("*.parquet"):
        ours = _AGAIN in path.name or path.stem in replaced
        if ours and path.name not in live:
            path.unlink()
    sync(data)


def _original(name: str) -> str:
    return name.removesuffix(".parquet").partition(_AGAIN)[0]


_FORMS: Final[Mapping[str, _Form]] = {
    ".parquet": _Form(_holds_parquet, _copy_parquet, _read_parquet),
    ".avro": _Form(_holds_avro, _copy_avro, _read_avro),
    ".json": _lines(_json_rows),
    ".csv": _lines(_csv_rows),
}
