"""The embedded event log: a folder per topic, a file per segment of records.

Rules that hold here:
- Appending is all or nothing in order: offsets have no gaps, and what was returned is on
  the disk. A partial line of a stopped writer is cut off by the next one.
- Several processes may append and read; a lock on the folder serializes writers.
- A file is named after the offset of its first record and is never changed afterwards,
  but at its end.
- A `MarkedTopic` writes each chunk once, as `transactions` does for Kafka. It notes what
  comes and where the topic ends, appends, and notes that it came. After a crash between the
  notes, the records with the chunk's key from the noted offset on are those that arrived;
  the rest is appended when the chunk is written again. A chunk that is written again begins
  with the same records.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from penstock.errors import UsageError, quote
from penstock.eventlog.lines import (
    MAX_KEY,
    MAX_LINE,
    Record,
    Slice,
    check_value,
    find_end,
    find_offset,
    format_line,
    parse_line,
    read_last,
)

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
            raise UsageError(f"{quote(name)} is no name for a topic", fix="use letters and digits")
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
        with self._locked():
            # Behind the lock, so that who waits for it does not bring records from the past.
            now = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
            first = self._repair()
            lines = [
                format_line(Record(offset, now, key, value))
                for offset, (key, value) in enumerate(zip(named, values, strict=True), first)
            ]
            if lines:
                self._write(b"".join(lines), first)
        return range(first, first + len(lines))

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        segments = self._segments()
        if not segments:
            return 0
        with _open(segments[-1]) as file:
            last = read_last(file, find_end(file))
        return _base(segments[-1]) if last is None else last.offset + 1

    @property
    def first_offset(self) -> int:
        """The offset of the oldest record that is still held."""
        segments = self._segments()
        return _base(segments[0]) if segments else 0

    def read(self, start: int = 0, limit: int | None = None) -> Iterator[Record]:
        """Yield records from an offset on, to the end that the log has now."""
        end = self.next_offset if limit is None else min(self.next_offset, start + limit)
        for piece in self.slices(start, end):
            with _open(Path(piece.path)) as file:
                file.seek(piece.start)
                while file.tell() < piece.end:
                    yield parse_line(file.readline(MAX_LINE))

    def slices(self, start: int, end: int, size: int = SEGMENT) -> list[Slice]:
        """Return the pieces of files that hold the records from `start` to before `end`."""
        segments = self._segments()
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

    def _segments(self) -> list[Path]:
        return sorted(self.folder.glob(f"[0-9]*{ENDING}")) if self.folder.is_dir() else []

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _repair(self) -> int:
        """Cut off a line that a stopped writer left, and return the next offset."""
        segments = self._segments()
        if not segments:
            return 0
        with segments[-1].open("r+b") as file:
            end = find_end(file)
            if end < file.seek(0, os.SEEK_END):
                file.truncate(end)
            last = read_last(file, end)
        return _base(segments[-1]) if last is None else last.offset + 1

    def _write(self, lines: bytes, first: int) -> None:
        segments = self._segments()
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
            sync_folder(self.folder)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
            arrived = sum(record.key == key for record in self._topic.read(self._begun))
        else:
            self._keep(begun=self._topic.next_offset)
        self._topic.append(values[arrived:], [key] * (len(values) - arrived))
        self.mark, self._begun = mark, None
        self._keep()

    def _keep(self, begun: int | None = None) -> None:
        mark = self.mark.decode() if self.mark else None
        self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._note.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump({"mark": mark, "begun": begun}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._note)
        sync_folder(self._note.parent)
