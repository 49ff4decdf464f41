"""Erases records from the embedded event log: their bytes go, their places stay.

    offset TAB milliseconds TAB key TAB value LF  ──▶  offset TAB milliseconds TAB TAB ~erased~… LF

Rules that hold here:
- A line keeps its offset and its length. Views that were at an offset still are, and a slice of
  a file that a task was given before still begins and ends between lines.
- A file is replaced as a whole, by one that is on the disk: a reader sees the old one or the new
  one, and a crash leaves one of them. Files without such a record are left alone.
- Who appends waits only while the newest records are looked at, and no append is lost.
- One process at a time erases from a topic: two that copied one file would undo each other.
- The key goes where it is the person's. Other keys stay: they tell which chunks have arrived.
- What a view holds back, and what a detection remembers, is in the hands of who runs it.
  `ask_to_forget` leaves a note in its folder, which goes when it was obeyed.
- What the disk keeps of a file that was removed is not for a program to say.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from penstock.eventlog.files import Record, Topic, find_end, parse_line
from penstock.hadoop import sync, write_whole
from penstock.json_text import ERASED

_PARTIAL: Final = ".erasing"
_LOCK: Final = ".erasing.lock"
_ASKED: Final = "forget"
_PAUSE: Final = 0.05
_STEP: Final = 10_000
"""Lines between two calls of `keep`."""

Select = Callable[[Record], bool]
"""Says whether a record is to be erased."""
Keep = Callable[[], None]
"""Called now and then by what takes long; raises where it must not go on."""


@dataclass(frozen=True, slots=True)
class LogErasure:
    """What was erased from a topic."""

    records: int
    files: int
    through: int
    """All records before this offset were looked at."""


def erase(
    topic: Topic, select: Select, person: str, *, needle: bytes | None, keep: Keep
) -> LogErasure:
    """Erase what `select` chooses among the records that are there now.

    With `needle`, only lines are looked at that hold these bytes, or may hold them in another
    spelling: escaped, or in base64.
    """
    if not topic.segments():
        return LogErasure(0, 0, 0)
    rewriter = _Rewriter(topic, select, person.encode(), needle, keep)
    with alone(topic.folder, keep):
        # A copy that somebody was killed over.
        (topic.folder / _PARTIAL).unlink(missing_ok=True)
        with topic.locked():
            # Half a line of a writer that was stopped is no record, and may be the person's.
            through = topic.repair()
        counts = [rewriter.rewrite(path) for path in topic.segments()]
    return LogErasure(sum(counts), sum(map(bool, counts)), through)


@contextmanager
def alone(folder: Path, keep: Keep) -> Iterator[None]:
    """Wait until nobody else erases from a folder."""
    with (folder / _LOCK).open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                keep()
                time.sleep(_PAUSE)
            else:
                break
        yield


class _Rewriter:
    """Copies files line by line."""

    def __init__(
        self, topic: Topic, select: Select, key: bytes, needle: bytes | None, keep: Keep
    ) -> None:
        self._topic = topic
        self._select = select
        self._key = key
        self._needle = needle
        self._keep = keep

    def rewrite(self, path: Path) -> int:
        """Replace a file where it has such records; return how many."""
        self._keep()
        partial = self._topic.folder / _PARTIAL
        with path.open("rb") as old:
            end = find_end(old)
            if not self._holds(old, end):
                return 0
            with partial.open("wb") as new:
                partial.chmod(0o600)
                # The bulk of it, while others go on appending.
                count = self._copy(old, new, 0, end)
                with self._topic.locked():
                    count += self._copy(old, new, end, find_end(old))
                    new.flush()
                    os.fsync(new.fileno())
                    partial.replace(path)
                    sync(self._topic.folder)
        return count

    def _holds(self, file: IO[bytes], end: int) -> bool:
        file.seek(0)
        place = 0
        for number, line in enumerate(file):
            if self._is_meant(line):
                return True
            if number % _STEP == _STEP - 1:
                self._keep()
            place += len(line)
            if place >= end:
                break
        return False

    def _copy(self, old: IO[bytes], new: IO[bytes], start: int, end: int) -> int:
        old.seek(start)
        count = number = 0
        while start < end:
            line = old.readline()
            start += len(line)
            if self._is_meant(line):
                line = make_placeholder(line, self._key)
                count += 1
            new.write(line)
            number += 1
            if number % _STEP == 0:
                self._keep()
        return count

    def _is_meant(self, line: bytes) -> bool:
        if not line.endswith(b"\n") or not self._may_hold(line):
            return False
        record = parse_line(line)
        return not record.is_erased and self._select(record)

    def _may_hold(self, line: bytes) -> bool:
        needle = self._needle
        return needle is None or needle in line or b"\\" in line or b"\t=" in line


def make_placeholder(line: bytes, key: bytes) -> bytes:
    """Return what stands in the place of a line, just as long; a key like `key` goes too."""
    offset, moment, named, _ = line[:-1].split(b"\t", 3)
    kept = b"" if parse_line(line).key == key else named
    room = len(line) - len(offset) - len(kept) - 4  # what is between, and the line end
    if room - len(moment) < len(ERASED):
        # The value was shorter than the mark: the moment of arrival makes room.
        moment = b"0"
    value = ERASED.ljust(room - len(moment))
    return b"%b\t%b\t%b\t%b\n" % (offset, moment, kept, value)


def ask_to_forget(folder: Path, request: str, person: str) -> None:
    """Ask who runs a view or a detection to forget a person, named as it knows people."""
    asked = folder / _ASKED
    asked.mkdir(mode=0o700, exist_ok=True)
    write_whole(asked / request, person.encode())
    sync(asked)


def is_asked(folder: Path, request: str) -> bool:
    """Say whether somebody is still to be forgotten for a request."""
    return (folder / _ASKED / request).exists()


def find_asked(folder: Path) -> dict[Path, str]:
    """Return the notes of people who are to be forgotten."""
    asked = folder / _ASKED
    if not asked.is_dir():
        return {}
    notes = (it for it in asked.iterdir() if not it.name.startswith("."))
    return {it: it.read_text(encoding="utf-8") for it in notes}
