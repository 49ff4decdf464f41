"""The embedded event log: a folder per topic, a file per segment, a line per record.

    offset TAB milliseconds TAB key TAB value LF

Rules that hold here:
- A line is a record, so that a file can be split at any line end and its slices be read in
  parallel. JSON needs no control characters; a value or key that has some, or begins with =,
  is written in base64 behind a =.
- Offsets grow by one from line to line. The offset stands first in each line, so that a
  position in a file is found by binary search, without an index that could be wrong.
- A line without its end is no record: its writer was stopped.
- Appending is all or nothing in order: offsets have no gaps, and what was returned is on
  the disk. A partial line of a stopped writer is cut off by the next one.
- Several processes may append and read; a lock on the folder serializes writers.
- At a store that Hadoop knows (`hdfs:`, `s3a:`) each append is a file of its own, named only where
  there is none of the name, and nothing is erased. On an object store one process appends.
- A file is named after the offset of its first record and is never changed afterwards,
  but at its end, and where a record is erased (`erasure`): then a placeholder takes the place
  of its line, offset by offset and byte by byte. `read` passes it over.
- A `MarkedTopic` writes each chunk once, as `transactions` does for Kafka. It notes what
  comes and where the topic ends, appends, and notes that it came. After a crash between the
  notes, the records with the chunk's key from the noted offset on are those that arrived;
  the rest is appended when the chunk is written again. A chunk that is written again begins
  with the same records.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from penstock.errors import PenstockError, UsageError, quote
from penstock.hadoop import HadoopPath, read_path, sync, write_new, write_whole
from penstock.json_text import ERASED

MAX_VALUE: Final = 1 << 20
MAX_KEY: Final = 1 << 12
# The longest line there can be: a value and a key in base64, two numbers, what is between.
MAX_LINE: Final = (MAX_VALUE + MAX_KEY) // 3 * 4 + 128
MARK: Final = b"="
CONTROL: Final = re.compile(rb"[\x00-\x1f]")


class Record(NamedTuple):
    """What the log holds at an offset."""

    offset: int
    milliseconds: int
    key: bytes
    value: bytes

    @property
    def is_erased(self) -> bool:
        """Whether only its place is left."""
        return self.value.startswith(ERASED) and not self.value[len(ERASED) :].strip(b" ")


class DamagedLogError(PenstockError):
    """A file of the log does not hold what was written to it."""


def check_value(value: bytes, most: int = MAX_VALUE) -> None:
    """Refuse what is too long for a record."""
    if len(value) > most:
        raise UsageError(f"a record of {len(value)} bytes is too long", fix=f"at most {most} bytes")


def encode(content: bytes) -> bytes:
    """Write a value or key so that it can stand in a line."""
    if CONTROL.search(content) or content.startswith(MARK):
        return MARK + base64.b64encode(content)
    return content


def decode(written: bytes) -> bytes:
    """Read what `encode` wrote."""
    if not written.startswith(MARK):
        return written
    return base64.b64decode(written[1:], validate=True)


def format_line(record: Record) -> bytes:
    """Write a record as a line."""
    key, value = encode(record.key), encode(record.value)
    return b"%d\t%d\t%b\t%b\n" % (record.offset, record.milliseconds, key, value)


def parse_line(line: bytes) -> Record:
    """Read a whole line."""
    parts = line.rstrip(b"\n").split(b"\t", 3)
    try:
        return Record(int(parts[0]), int(parts[1]), decode(parts[2]), decode(parts[3]))
    except (IndexError, ValueError, binascii.Error):
        raise DamagedLogError(
            "a line of the event log is damaged", fix="restore the file from a backup"
        ) from None


def find_end(file: IO[bytes]) -> int:
    """Return where the last whole line ends."""
    place = file.seek(0, os.SEEK_END)
    step = 1 << 12
    while place > 0:
        start = max(0, place - step)
        file.seek(start)
        found = file.read(place - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        place, step = start, step * 4
    return 0


def read_last(file: IO[bytes], end: int) -> Record | None:
    """Return the last record before `end`, which is the end of a line."""
    if end == 0:
        return None
    step = 1 << 12
    while True:
        start = max(0, end - step)
        file.seek(start)
        piece = file.read(end - start)
        found = piece.rfind(b"\n", 0, -1)
        if found >= 0 or start == 0:
            return parse_line(piece[found + 1 :])
        step *= 4


def find_offset(file: IO[bytes], offset: int, end: int) -> int:
    """Return where the line of an offset begins; `end` where all lines are of earlier ones."""
    low, high = 0, end
    # The line sought begins at or after `low`, and is the first at or after `high`.
    while low < high:
        middle = (low + high) // 2
        start = _next_line(file, middle, end)
        if start < end and _read_offset(file, start) < offset:
            low = start + 1
        else:
            high = middle
    return _next_line(file, low, end)


def _read_offset(file: IO[bytes], place: int) -> int:
    file.seek(place)
    return parse_line(file.readline(MAX_LINE)).offset


def _next_line(file: IO[bytes], place: int, most: int) -> int:
    """Return where the first line at or after a place begins; `most` where there is none."""
    if place == 0:
        return 0
    file.seek(place - 1)
    skipped = file.readline(MAX_LINE)
    return min(place - 1 + len(skipped), most)


class Slice(NamedTuple):
    """Whole lines of a file, from one byte to before another."""

    path: str
    start: int
    end: int

    def read(self) -> bytes:
        """Return the lines."""
        with read_path(self.path).open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


SEGMENT: Final = 64 << 20
MAX_APPEND: Final = 1_000_000
DIGITS: Final = 20
ENDING: Final = ".log"


class EventLog:
    """All topics below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def topic(self, name: str) -> Topic:
        """Return a topic; it need not have records yet."""
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise UsageError(
                f"{quote(name)} is not a name for a topic", fix="use letters and digits"
            )
        return Topic(self.root / name)

    def topics(self) -> list[str]:
        """Return the names of the topics that have a folder."""
        if not self.root.is_dir():
            return []
        return sorted(item.name for item in self.root.iterdir() if item.is_dir())


class Topic:
    """The records of one topic, in the order of their offsets."""

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        self.folder = folder
        self._segment = segment

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> range:
        """Append records, and return their offsets once they are on the disk."""
        if len(values) > MAX_APPEND:
            raise UsageError(f"{len(values)} records at once", fix=f"append at most {MAX_APPEND}")
        named = keys if keys is not None else [b""] * len(values)
        for value in values:
            check_value(value)
        for key in named:
            check_value(key, MAX_KEY)
        if isinstance(self.folder, HadoopPath):
            return self._add_file(values, named, milliseconds)
        with self.locked():
            # Behind the lock, so that who waits for it does not bring records from the past.
            first = self.repair()
            if values:
                self._write(_format_lines(values, named, first, milliseconds), first)
        return range(first, first + len(values))

    def _add_file(
        self, values: Sequence[bytes], keys: Sequence[bytes], milliseconds: int | None
    ) -> range:
        """Append records as a file of their own: nothing is appended to files at a store.

        Who comes second, where two append at once, finds the other's file and goes behind it.
        """
        while True:
            first = self.next_offset
            if not values:
                return range(first, first)
            lines = _format_lines(values, keys, first, milliseconds)
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_new(self.folder / f"{first:0{DIGITS}}{ENDING}", lines)
                return range(first, first + len(values))

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        segments = self.segments()
        if not segments:
            return 0
        with _open(segments[-1]) as file:
            last = read_last(file, find_end(file))
        return _base(segments[-1]) if last is None else last.offset + 1

    @property
    def first_offset(self) -> int:
        """The offset of the oldest record that is still held."""
        segments = self.segments()
        return _base(segments[0]) if segments else 0

    def count_from(self, offset: int) -> int:
        """Return how many records there are from an offset on."""
        return max(0, self.next_offset - max(offset, self.first_offset))

    def read(
        self, start: int = 0, limit: int | None = None, *, erased: bool = False
    ) -> Iterator[Record]:
        """Yield records from an offset on, to the end that the log has now.

        With `erased`, also the places of those that were erased, for who counts what arrived.
        """
        end = self.next_offset if limit is None else min(self.next_offset, start + limit)
        for piece in self.slices(start, end):
            with _open(read_path(piece.path)) as file:
                file.seek(piece.start)
                while file.tell() < piece.end:
                    record = parse_line(file.readline(MAX_LINE))
                    if erased or not record.is_erased:
                        yield record

    def slices(self, start: int, end: int, size: int = SEGMENT) -> list[Slice]:
        """Return the pieces of files that hold the records from `start` to before `end`."""
        segments = self.segments()
        if start >= end or not segments:
            return []
        bases = [_base(path) for path in segments]
        found = []
        for path in segments[max(0, bisect_right(bases, start) - 1) : bisect_right(bases, end - 1)]:
            with _open(path) as file:
                last = find_end(file)
                low = find_offset(file, start, last) if _base(path) < start else 0
                high = find_offset(file, end, last)
                found += list(_cut(file, path, low, high, size))
        return found

    def segments(self) -> list[Path]:
        """Return the files of the topic, oldest first."""
        return sorted(self.folder.glob(f"[0-9]*{ENDING}")) if self.folder.is_dir() else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all who append away."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def repair(self) -> int:
        """Cut off a line that a stopped writer left, and return the next offset."""
        segments = self.segments()
        if not segments:
            return 0
        with segments[-1].open("r+b") as file:
            end = find_end(file)
            if end < file.seek(0, os.SEEK_END):
                file.truncate(end)
            last = read_last(file, end)
        return _base(segments[-1]) if last is None else last.offset + 1

    def _write(self, lines: bytes, first: int) -> None:
        segments = self.segments()
        path = segments[-1] if segments else None
        if path is None or path.stat().st_size >= self._segment:
            path = self.folder / f"{first:0{DIGITS}}{ENDING}"
        fresh = not path.exists()
        with path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            path.chmod(0o600)
            sync(self.folder)


def _format_lines(
    values: Sequence[bytes], keys: Sequence[bytes], first: int, milliseconds: int | None
) -> bytes:
    now = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
    return b"".join(
        format_line(Record(offset, now, key, value))
        for offset, (key, value) in enumerate(zip(keys, values, strict=True), first)
    )


def _base(path: Path) -> int:
    return int(path.name.removesuffix(ENDING))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _cut(file: IO[bytes], path: Path, low: int, high: int, size: int) -> Iterator[Slice]:
    """Cut a stretch into pieces of about a size, at line ends."""
    while low < high:
        end = low + size
        if end >= high:
            end = high
        else:
            file.seek(end - 1)
            end = min(end - 1 + len(file.readline(MAX_LINE)), high)
        yield Slice(str(path), low, end)
        low = end


class MarkedTopic:
    """Writes chunks to a topic, for one writer of a name."""

    def __init__(self, topic: Topic, note: Path) -> None:
        self._topic = topic
        self._note = note
        held = json.loads(note.read_bytes()) if note.exists() else {}
        self.mark: bytes | None = held["mark"].encode() if held.get("mark") else None
        self._begun: int | None = held.get("begun")

    def write(self, values: Sequence[bytes], mark: bytes) -> None:
        """Append a chunk, and keep the mark behind it."""
        key = f"{self._note.stem}@{self.mark.decode() if self.mark else ''}".encode()[:4096]
        arrived = 0
        if self._begun is not None:
            held = self._topic.read(self._begun, erased=True)
            arrived = sum(record.key == key for record in held)
        else:
            self._keep(begun=self._topic.next_offset)
        self._topic.append(values[arrived:], [key] * (len(values) - arrived))
        self.mark, self._begun = mark, None
        self._keep()

    def _keep(self, begun: int | None = None) -> None:
        mark = self.mark.decode() if self.mark else None
        self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._note, json.dumps({"mark": mark, "begun": begun}).encode())
        sync(self._note.parent)
