"""Files of a folder as the source of a stream, found by Spark's file source.

    binaryFile: paths ─▶ survey: blocks of each file ─▶ spread over tasks ─▶ rows of a block

Rules that hold here:
- Spark finds new files, and notes in the checkpoint which it has found: each path once, with its
  time of change. A file appears whole, under its name, as renaming does it, and stays as it is
  until all views have read it. One that is gone before, or is changed at any time, is told.
- Names that begin with . or _ are passed over, and so are names without an ending of the format,
  and what lies in folders below.
- The offset of a row is a number drawn from the name of its file, plus its place there: the same
  in every view, without a list of files. Two files whose numbers meet are as good as impossible.
- A record arrived when the batch was planned in which its file was found; Spark keeps that
  moment with the batch.
- Tasks see the folder under the same path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UnavailableError, quote
from penstock.hadoop import write_whole
from penstock.model.kinds.streams import StreamField
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, PROBLEM, VALUE
from penstock.pipeline.session import freeze_loaded
from penstock.pipeline.sources.blocks import ENDINGS, Block, read_block, survey
from penstock.pipeline.sources.event_log import Position
from penstock.pipeline.sources.values import Values, wrong

FORMAT: Final = "binaryFile"
FILES: Final = "files:"
"""Begins what names a source of files for good."""
ROW_BYTES: Final = 512
"""What a row is taken to have, where a number of rows is wanted and bytes can be asked for."""
_FILTER: Final = "pathGlobFilter"
_FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"
"""What Spark's source tells of files; of these, only paths are asked for."""
_ROWS: Final = f"`{OFFSET}` bigint, `{VALUE}` binary, `{PROBLEM}` string"
_BLOCKS: Final = (
    "path string, header string, start bigint, end bigint, rows bigint, first bigint, "
    "changed bigint, problem string"
)
_AGE: Final = "36500d"
"""Spark passes files over that are so much older than the newest one."""
_GLOB: Final = re.compile(r"([\\{}\[\]*?])")
_VERSION: Final = "v1"
_NUMBER: Final = (1 << 62) - 1


class ChangedFileError(UnavailableError):
    """A file is gone, or not as it was when it was found."""


class SeenFile(NamedTuple):
    """A file that Spark's file source has found."""

    path: Path
    changed: int
    """Its time of change then, in milliseconds."""
    number: int
    """The number of the note that it stands in: places in the source are such numbers."""

    def check(self, *, needed: bool) -> None:
        """Raise if the file is not as it was; only one that is needed has to be there."""
        try:
            changed = _changed(self.path)
            if needed:
                self.path.open("rb").close()
        except FileNotFoundError:
            if needed:
                raise ChangedFileError(
                    f"the file {quote(self.path)} is gone before it was read",
                    fix="put it back as it was, with its time of change",
                ) from None
        except OSError as error:
            raise UnavailableError(
                f"the file {quote(self.path)} cannot be read: {error.strerror}",
                fix="let the pipeline read it, or put it back as it was",
            ) from None
        else:
            if changed != self.changed:
                raise _is_changed(self.path)


class FilesSource:
    """The rows of files as records of a stream."""

    def __init__(self, folder: Path, form: str, fields: Sequence[StreamField]) -> None:
        self._folder = folder
        self._form = form
        self._fields = tuple(fields)
        self._known: tuple[int, list[tuple[int, str]]] = (0, [])

    def begin(self) -> None:
        """Nothing is to be done before the first reader."""

    def identify(self) -> str:
        """Return what names this source for good."""
        if not os.access(self._folder, os.R_OK | os.X_OK):
            raise UnavailableError(
                f"the folder {quote(self._folder)} cannot be read",
                fix="create it, and let the pipeline read it",
            )
        return f"{FILES}{self._form}:{self._folder}"

    def read_stream(self, spark: SparkSession, rows: int | None, start: str = "") -> DataFrame:  # noqa: ARG002
        """Return the records as a stream; where it begins is in the checkpoint, see `hand_over`."""
        reader = spark.readStream.format(FORMAT).schema(_FILES)
        reader = reader.option("maxBytesPerTrigger", max(1, rows or 0) * ROW_BYTES)
        reader = reader.option("maxFileAge", _AGE).option(_FILTER, self._pattern())
        # A pattern that nothing fits finds nothing; what was found before is read by its paths.
        folder = _escape(self._folder)
        return self._read_files(reader.load(folder if rows else f"{folder}/.nothing*"))

    def read(self, spark: SparkSession, start: str = "", end: str = "") -> DataFrame:  # noqa: ARG002
        """Return all records that there are now."""
        reader = spark.read.format(FORMAT).option(_FILTER, self._pattern())
        return self._read_files(reader.load(_escape(self._folder)))

    def hand_over(self, position: Position, checkpoint: Path) -> str:
        """Note files that were read as known in another checkpoint, and of no batch there."""
        read = _read_number(position.offsets)
        lines = [
            json.dumps({**entry, "batchId": 0})
            for entry in _entries(position.checkpoint).values()
            if entry["batchId"] <= read
        ]
        noted = checkpoint / "sources" / "0"
        noted.mkdir(mode=0o700, parents=True)
        # Spark knows all entries of a note, and reads those of its own number: here none.
        (noted / "0").write_text(_VERSION, encoding="utf-8")
        (noted / "1").write_text("\n".join([_VERSION, *lines]), encoding="utf-8")
        return json.dumps({"logOffset": 1})

    def check(self, position: Position) -> None:
        """Raise if a file was changed since it was found, or is gone and was not read yet."""
        read = _read_number(position.offsets)
        for file in seen_files(position.checkpoint):
            file.check(needed=read < 0 or file.number > read)

    def check_whole(self) -> None:
        """Nobody but a checkpoint knows which files there were: `check`."""

    def count_behind(self, position: Position) -> int:
        """Return how many files there are that were not given out yet."""
        read = _read_number(position.offsets)
        known = {file.path.name for file in seen_files(position.checkpoint) if file.number <= read}
        return len(set(self._list()) - known)

    def locate(self, offset: int) -> dict[str, Any]:
        """Return where a record stands: the file, and the row there, from 0 on."""
        changed = self._folder.stat().st_mtime_ns
        if self._known[0] != changed:
            self._known = changed, sorted((number_of(name), name) for name in self._list())
        firsts = self._known[1]
        place = bisect_right(firsts, (offset, "\U0010ffff")) - 1
        if place < 0:
            return {"offset": offset}
        first, name = firsts[place]
        return {"offset": offset, "file": name, "row": offset - first}

    def _list(self) -> list[str]:
        with os.scandir(self._folder) as items:
            return [
                item.name
                for item in items
                if not item.name.startswith((".", "_"))
                and ENDINGS.get(os.path.splitext(item.name)[1]) == self._form  # noqa: PTH122
                and item.is_file()
            ]

    def _pattern(self) -> str:
        """Return what Hadoop knows the names of the files by."""
        endings = [it.removeprefix(".") for it, form in ENDINGS.items() if form == self._form]
        return f"*.{{{','.join(endings)}}}"

    def _read_files(self, files: DataFrame) -> DataFrame:
        form, fields = self._form, self._fields

        def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_loaded()
            for batch in batches:
                for path in batch.column(0).to_pylist():
                    yield survey_file(_local(path), form)

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_loaded()
            for batch in batches:
                for entry in batch.to_pylist():
                    yield read_rows(entry, form, fields)

        blocks = files.select("path").mapInArrow(find, _BLOCKS)
        tasks = max(2, files.sparkSession.sparkContext.defaultParallelism)
        rows = blocks.repartition(tasks).mapInArrow(read, _ROWS)
        arrived = F.unix_millis(F.current_timestamp())
        return rows.select(f"`{OFFSET}`", arrived.alias(MILLISECONDS), f"`{VALUE}`", f"`{PROBLEM}`")


def seen_files(checkpoint: Path) -> list[SeenFile]:
    """Return the files that Spark's file source has found, by the checkpoint of its query."""
    return [
        # Paths are written as URLs there.
        SeenFile(_local(unquote(entry["path"])), entry["timestamp"], entry["batchId"])
        for entry in _entries(checkpoint).values()
    ]


def forget_files(checkpoint: Path, place: str) -> None:
    """Let files be found anew that were found behind a place."""
    read = _read_number(place)
    for path in _notes(checkpoint):
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["batchId"] <= read]
        if len(kept) < len(lines):
            # Hadoop keeps a checksum beside the file; without one, it takes what is there.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            write_whole(path, "\n".join([version, *kept]).encode())


def _entries(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Return what Spark noted of each file; what is old stands in a later note once more."""
    lines = [
        line
        for path in _notes(checkpoint)
        for line in path.read_text(encoding="utf-8").splitlines()[1:]
    ]
    return {entry["path"]: entry for entry in map(json.loads, lines)}


def _read_number(place: str) -> int:
    """Return up to which note files were read."""
    return int(json.loads(place).get("logOffset", -1)) if place else -1


def _notes(checkpoint: Path) -> list[Path]:
    noted = checkpoint / "sources" / "0"
    found = noted.iterdir() if noted.is_dir() else ()
    return [path for path in found if path.name.removesuffix(".compact").isdigit()]


def number_of(name: str) -> int:
    """Return the offset of the first row of a file."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) & _NUMBER


def survey_file(path: Path, form: str) -> pa.RecordBatch:
    """Return the blocks of a file, and what is wrong with all of it as one row more."""
    try:
        changed = _changed(path)
        found = survey(path, form)
    except OSError as error:
        raise UnavailableError(
            f"the file {quote(path)} cannot be read: {error.strerror}",
            fix="put it back as it was, and let the pipeline read it",
        ) from None
    entries: list[tuple[str | int | None, ...]] = []
    row = 0
    header = json.dumps(found.header)
    for block in found.blocks:
        entries.append((str(path), header, *block, row, changed, None))
        row += block.rows
    if found.problem is not None:
        entries.append((str(path), header, 0, 0, 1, row, changed, found.problem))
    names = [it.split()[0] for it in _BLOCKS.split(", ")]
    kinds = [pa.string(), pa.string(), *[pa.int64()] * 5, pa.string()]
    columns = zip(*entries, strict=True) if entries else [()] * len(names)
    return pa.record_batch(
        [pa.array(it, kind) for it, kind in zip(columns, kinds, strict=True)], names=names
    )


def read_rows(entry: dict[str, Any], form: str, fields: Sequence[StreamField]) -> pa.RecordBatch:
    """Return the rows of a block that a survey found."""
    path = Path(entry["path"])
    found: Values
    if entry["problem"] is not None:
        found = wrong(1, entry["problem"])
    else:
        block = Block(entry["start"], entry["end"], entry["rows"])
        found = read_block(path, form, json.loads(entry["header"]), block, fields)
    if _changed(path) != entry["changed"]:
        raise _is_changed(path)
    first = number_of(path.name) + entry["first"]
    return pa.record_batch(
        {
            OFFSET: pa.array(np.arange(first, first + entry["rows"], dtype=np.int64)),
            VALUE: found.values,
            PROBLEM: found.problems,
        }
    )


def _local(path: str) -> Path:
    """Return a path as this machine has it; Hadoop writes the scheme before it."""
    return Path(f"/{path.removeprefix('file:').lstrip('/')}")


def _changed(path: Path) -> int:
    """Return the time of change of a file, as Hadoop tells it."""
    return path.stat().st_mtime_ns // 1_000_000


def _is_changed(path: Path) -> ChangedFileError:
    return ChangedFileError(
        f"the file {quote(path)} was changed after it was found",
        fix="put it back as it was, with its time of change; new records go into new files",
    )


def _escape(folder: Path) -> str:
    """Return a folder as Hadoop takes it for itself, and not for a pattern."""
    return _GLOB.sub(r"\\\1", str(folder))
