"""Files become records of a stream: fed into the event log, or row by row, each row once.

    row ─→ cells of the declared types? ─┬→ a JSON object in the stream's topic
                                         └→ told: file, line, reason; counted

Rules that hold here:
- `feed` takes streams of JSON values in the event log: nobody would read it elsewhere. A file must
  have every field that the stream requires, and no line that is none, else nothing of it is fed;
  columns that the stream does not have are left out. A cell that is not a value of its field's type
  goes on as text, so that its record becomes a dead letter of each view, with the reason. Memory
  is bounded by a block of the file, whatever its size. CSV may be written in other encodings, with
  other delimiters and without a header (`dialects`).
- A file that was fed to a stream is known by what it holds, whatever its name (`FedFiles`): nobody
  feeds it again by mistake.
- `Connector` ingests each row once, however often one tries. A chunk of rows arrives together with
  a mark of how far its file is fed, or neither does. The mark has the hash of all that was fed: a
  file that was changed before that place is refused, one that grew is fed on.
- A file is known by its name in the stream. Another file of that name is a changed one.
- Reasons name the field and never hold what the cell said.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.views import schema_of
from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.feeding.dialects import DELIMITERS, Dialect, detect, in_our_dialect
from penstock.json_text import read_object
from penstock.masks.chain import type_reason
from penstock.masks.fields import CHECKS, FieldType, Schema, avro_names, read_text
from penstock.model.kinds import Stream
from penstock.pipeline.sources.blocks import ENDINGS, Survey, read_block, survey
from penstock.pipeline.sources.values import NO_TEXT

ROWS: Final = 50_000
LOOKED_AT: Final = 1_000
"""How many objects of a file tell which fields it has."""
ENCODE: Final = "save the file in UTF-8, such as with `iconv -f latin1 -t utf8`"
FIXES: Final = {
    "csv": "give every line as many cells as the first",
    "json": "write one object a line",
}


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """What is said about how CSV files are written; None: it is detected."""

    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None


def feed(
    path: Path, stream: Stream, topic: Topic, options: CsvOptions | None = None
) -> tuple[int, Dialect | None]:
    """Append the records of a file to a topic; return how many, and how the CSV is written."""
    if stream.source is not None:
        files = stream.source.files
        raise UsageError(
            f"the stream {quote(stream.name)} "
            f"{'reads files by itself' if files else 'is read from Kafka'}",
            fix=f"put the file into {files.folder}" if files else "use `penstock connect`",
        )
    if stream.format != "json":
        raise UsageError(
            f"the values of the stream {quote(stream.name)} are {stream.format}, and rows of "
            "files are fed as JSON",
            fix="feed a stream of format json",
        )
    form = ENDINGS.get(path.suffix.lower())
    if form is None:
        fix = f"feed a file that ends in {', '.join(ENDINGS)}"
        kind = f"type {path.suffix}" if path.suffix else "name without an ending"
        raise UsageError(f"unsupported file {kind}: {quote(path.name)}", fix=fix)
    try:
        if form != "csv":
            return _feed(path, form, stream, topic), None
        dialect = _find_dialect(path, stream, options or CsvOptions())
        columns = [it.name for it in stream.fields]
        with in_our_dialect(path, dialect, columns) as ours:
            return _feed(ours, form, stream, topic), dialect
    except OSError as error:
        raise UsageError(
            f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
        ) from None


def _find_dialect(path: Path, stream: Stream, options: CsvOptions) -> Dialect:
    """Return how a file is written; refuse one whose first line names nothing of the stream."""
    fields = [it.name for it in stream.fields]
    found = detect(path, fields, encoding=options.encoding, delimiter=options.delimiter)
    if options.header is not None:
        return replace(found, header=options.header)
    if not found.header and path.stat().st_size:
        raise UsageError(
            f"the first line of {quote(path.name)} names no field of the stream "
            f"(read as {found.encoding} with {DELIMITERS.get(found.delimiter, found.delimiter)})",
            fix=f"fields are {', '.join(fields[:20])}; if the file has no header, and its columns "
            "are these in this order, add --no-header",
        )
    return replace(found, header=True)


def _feed(path: Path, form: str, stream: Stream, topic: Topic) -> int:
    found = survey(path, form)
    _check(found, form, stream, path)
    fed = 0
    for block in found.blocks:
        rows = read_block(path, form, found.header, block, stream.fields)
        wrong = rows.problems.drop_null()
        if len(wrong):
            raise UsageError(
                f"{quote(path.name)} holds rows that cannot be read, of {len(wrong)} the first: "
                f"{wrong[0]}; {fed} records were fed",
                fix=f"{ENCODE if wrong[0].as_py() == NO_TEXT else 'correct the file'}"
                f"{', and feed the rest' if fed else ''}",
            )
        fed += _append(topic, rows.values)
    return fed


def _append(topic: Topic, values: pa.Array) -> int:
    starts = range(0, len(values), ROWS)
    return sum(len(topic.append(values.slice(start, ROWS).to_pylist())) for start in starts)


def _check(found: Survey, form: str, stream: Stream, path: Path) -> None:
    if found.problem is not None or found.wrong:
        raise UsageError(
            f"{quote(path.name)} cannot be fed: "
            f"{found.problem or f'{found.wrong} of its lines are no records'}",
            fix=FIXES.get(form, "check the file"),
        )
    if form == "json":
        _check_objects(path, stream)
        return
    names = set(found.header)
    if form == "avro":
        called = avro_names(field.name for field in stream.fields)
        names |= {ours for ours, theirs in called.items() if theirs in names}
    missing = [it.name for it in stream.fields if not it.optional and it.name not in names]
    if missing:
        raise UsageError(
            f"{quote(path.name)} has no column {quote(missing[0])}, which the stream requires",
            fix=f"columns there are {', '.join(found.header[:20]) or 'none'}",
        )


def _check_objects(path: Path, stream: Stream) -> None:
    """Refuse a file of objects if none of its first ones has a field that is required."""
    names: set[str] = set()
    nested: set[str] = set()
    with path.open("rb") as file:
        for line in itertools.islice(file, LOOKED_AT):
            found = read_object(line.strip().removeprefix(b"\xef\xbb\xbf"))
            if found is None:
                continue
            names |= found.keys()
            for name, value in found.items():
                if isinstance(value, dict):
                    nested |= {f"{name}.{inner}" for inner in value}
    missing = [it.name for it in stream.fields if not it.optional and it.name not in names]
    if names and missing:
        inside = missing[0] in nested
        where = ", but nested in an object: fields are read at the top" if inside else ""
        raise UsageError(
            f"no record of {quote(path.name)} has the field {quote(missing[0])}, which the stream "
            f"requires{where}",
            fix="write it at the top of each record, such as with jq: "
            f"`{{{json.dumps(missing[0])}: .{missing[0]}}}`"
            if inside
            else f"fields there are {', '.join(sorted(names)[:20])}",
        )


class FedFiles:
    """Which files were fed to a stream, by what they hold."""

    def __init__(self, folder: Path, stream: str) -> None:
        self._file = folder / ".fed" / stream / "files.jsonl"

    def refuse(self, path: Path) -> str:
        """Return the hash of a file; refuse one that was fed before."""
        digest = self.digest(path)
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                known = json.loads(line)
                if known["sha256"] == digest:
                    name = "" if known["file"] == path.name else f" as {quote(known['file'])}"
                    raise UsageError(
                        f"{quote(path.name)} was fed{name} at {known['at']} already, with "
                        f"{known['records']:,} records",
                        fix="add --again to append all of them once more",
                    )
        return digest

    def digest(self, path: Path) -> str:
        """Return the hash that a file is known by."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(
                f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
            ) from None

    def note(self, path: Path, digest: str, records: int) -> None:
        """Note that a file was fed."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"file": path.name, "sha256": digest, "records": records, "at": at}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


CHUNK: Final = 5_000
MAX_LINE: Final = 1 << 20
CELLS: Final = "the line has more or fewer cells than the first line"
NOT_UTF8: Final = "the line is not text in UTF-8"
TOO_LONG: Final = f"the line is longer than {MAX_LINE} bytes"
EMPTY: Final = "the field {} is empty, which the stream requires"


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file is fed: where, and what was there before."""

    place: int = 0
    line: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    fed: int = 0
    bad: int = 0

    def to_json(self) -> bytes:
        """Write the mark."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no record."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class Fed:
    """What became of a file in this run, and in all runs."""

    file: str
    rows: int = 0
    bad: list[BadRow] = field(default_factory=list)
    mark: Mark = Mark()


class ChunkWriter(Protocol):
    """Where chunks go: with their marks, all or nothing."""

    @property
    def mark(self) -> bytes | None:
        """The mark of the newest chunk; None where there is none."""

    def write(self, values: Sequence[bytes], mark: bytes) -> None:
        """Write a chunk and the mark behind it."""


class Connector:
    """Feeds the files of a folder, one by one."""

    def __init__(self, stream: Stream, open_writer: Callable[[str], ChunkWriter]) -> None:
        if stream.format != "json" or (stream.source is not None and stream.source.files):
            what = stream.format if stream.format != "json" else "read from files by itself"
            raise UsageError(
                f"the stream {quote(stream.name)} is {what}, and rows are fed as JSON",
                fix="feed a stream of format json in the event log or at Kafka",
            )
        self._schema = schema_of(stream)
        self._open = open_writer

    def feed(self, path: Path, advance: Callable[[int], None] = lambda _: None) -> Fed:
        """Feed what is new in a file; `advance` gets the bytes that are behind us."""
        writer = self._open(path.name)
        mark = Mark(**json.loads(writer.mark)) if writer.mark else Mark()
        done = Fed(path.name, mark=mark)
        with path.open("rb") as file:
            rows = _Rows(file)
            header = rows.header()
            self._check_header(header, path)
            _skip(rows, mark, path)
            advance(rows.place)
            chunk: list[bytes] = []
            bad: list[BadRow] = []
            before = rows.place
            for line, cells in rows:
                made = self._make(cells, header)
                if isinstance(made, str):
                    bad.append(BadRow(path.name, line, made))
                else:
                    chunk.append(made)
                if len(chunk) + len(bad) >= CHUNK:
                    self._write(writer, done, rows, chunk, bad)
                    chunk, bad = [], []
                    advance(rows.place - before)
                    before = rows.place
            if chunk or bad:
                self._write(writer, done, rows, chunk, bad)
            advance(rows.place - before)
        return done

    def _write(
        self, writer: ChunkWriter, done: Fed, rows: _Rows, chunk: list[bytes], bad: list[BadRow]
    ) -> None:
        mark = replace(
            done.mark,
            place=rows.place,
            line=rows.line,
            sha256=rows.hash.hexdigest(),
            fed=done.mark.fed + len(chunk),
            bad=done.mark.bad + len(bad),
        )
        writer.write(chunk, mark.to_json())
        done.mark = mark
        done.rows += len(chunk)
        done.bad += bad

    def _check_header(self, header: Sequence[str], path: Path) -> None:
        missing = [
            name for name, it in self._schema.items() if not it.optional and name not in header
        ]
        if missing or len(set(header)) < len(header):
            what = f"has no column {quote(missing[0])}" if missing else "has a column twice"
            raise UsageError(
                f"{quote(path.name)} {what}",
                fix=f"columns there are {', '.join(header[:20]) or 'none'}",
            )

    def _make(self, cells: list[str] | str, header: Sequence[str]) -> bytes | str:
        """Return a row as JSON, or what is wrong with it."""
        if isinstance(cells, str):
            return cells
        if len(cells) != len(header):
            return CELLS
        found = dict(zip(header, cells, strict=True))
        return _convert(found, self._schema)


def _convert(found: dict[str, str], schema: Schema) -> bytes | str:
    made: dict[str, Any] = {}
    for name, declared in schema.items():
        text = found.get(name, "")
        if not text and (declared.optional or declared.type is not FieldType.STRING):
            if not declared.optional:
                return EMPTY.format(repr(name))
            made[name] = None
            continue
        value = _read_cell(declared.type, text)
        if value is None:
            return type_reason(name, declared.type)
        made[name] = value.isoformat() if isinstance(value, date) else value
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()


def _read_cell(kind: FieldType, text: str) -> Any:
    if kind is not FieldType.TIMESTAMP:
        return read_text(kind, text)
    try:
        return CHECKS[kind](datetime.fromisoformat(text))
    except ValueError:
        return None


class _Rows:
    """The rows of a file, with the place and the hash of what was read up to each."""

    def __init__(self, file: IO[bytes]) -> None:
        self.place = self.line = 0
        self.hash = hashlib.sha256()
        self._file = file
        self._problems: list[str] = []

    def header(self) -> list[str]:
        """Read the first row."""
        names = next(csv.reader(self.lines()), [])
        return [names[0].removeprefix("\ufeff"), *names[1:]] if names else []

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        """Yield each row with the number of its first line; a text says what is wrong with it."""
        lines = self.lines()
        while True:
            first = self.line + 1
            self._problems.clear()
            try:
                # One reader a row: a quote that is never closed ends with the file at worst.
                cells = next(csv.reader(lines, strict=True), None)
            except csv.Error:
                yield first, CELLS
                continue
            if cells is None:
                return
            if self._problems or cells:
                yield first, self._problems[0] if self._problems else cells

    def lines(self) -> Iterator[str]:
        """Yield lines; what is wrong with them is kept for their row."""
        while data := self._file.readline(MAX_LINE + 1):
            self.place += len(data)
            self.line += 1
            self.hash.update(data)
            if len(data) > MAX_LINE:
                self._problems.append(TOO_LONG)
            try:
                yield data.decode()
            except UnicodeDecodeError:
                self._problems.append(NOT_UTF8)
                yield data.decode(errors="replace")


def _skip(rows: _Rows, mark: Mark, path: Path) -> None:
    """Pass over what was fed before, if it is still what it was."""
    if not mark.place:
        return
    lines = rows.lines()
    while rows.place < mark.place and next(lines, None) is not None:
        pass
    if (rows.place, rows.hash.hexdigest()) != (mark.place, mark.sha256):
        raise UsageError(
            f"{quote(path.name)} was changed before line {mark.line}, to which it was fed",
            fix="give the new rows a file of another name",
        )
