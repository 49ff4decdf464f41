"""Files become records of a stream: fed into the event log, or row by row, each row once.

    row ─→ cells of the declared types? ─┬→ a JSON object in the stream's topic
                                         └→ told: file, line, reason; counted

Rules that hold here:
- `feed` takes streams of JSON values in the event log: nobody would read it elsewhere. A file must
  have every field that the stream requires, and no line that is none, else nothing of it is fed;
  columns that the stream does not have are left out. A cell that is no value of its field's type
  goes on as text, so that its record becomes a dead letter of each view, with the reason. Memory
  is bounded by a block of the file, whatever its size.
- `Connector` ingests each row once, however often one tries. A chunk of rows arrives together with
  a mark of how far its file is fed, or neither does. The mark has the hash of all that was fed: a
  file that was changed before that place is refused, one that grew is fed on.
- A file is known by its name in the stream. Another file of that name is a changed one.
- Reasons name the field and never hold what the cell said.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.views import schema_of
from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.masks.chain import type_reason
from penstock.masks.fields import CHECKS, FieldType, Schema, avro_names, read_text
from penstock.model.kinds import Stream
from penstock.pipeline.sources.blocks import ENDINGS, Survey, read_block, survey
from penstock.pipeline.sources.values import NO_TEXT

ROWS: Final = 50_000
ENCODE: Final = "save the file in UTF-8, such as with `iconv -f latin1 -t utf8`"
FIXES: Final = {
    "csv": "give every line as many cells as the first",
    "json": "write one object a line",
}


def feed(path: Path, stream: Stream, topic: Topic) -> int:
    """Append the records of a file to a topic; return how many."""
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
    form = ENDINGS.get(path.suffix)
    if form is None:
        fix = f"files end in {', '.join(ENDINGS)}"
        raise UsageError(f"what {quote(path.name)} holds is not known", fix=fix)
    try:
        found = survey(path, form)
    except OSError as error:
        raise UsageError(
            f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
        ) from None
    _check(found, form, stream, path)
    fed = 0
    for block in found.blocks:
        rows = read_block(path, form, found.header, block, stream.fields)
        wrong = rows.problems.drop_null()
        if len(wrong):
            raise UsageError(
                f"{quote(path.name)} holds rows that cannot be read, of {len(wrong)} the first: "
                f"{wrong[0]}; {fed} records were fed",
                fix=f"{ENCODE if wrong[0].as_py() == NO_TEXT else 'mend the file'}"
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
