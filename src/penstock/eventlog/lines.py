"""The format of a record in a file of the log, and how it is found there.

    offset TAB milliseconds TAB key TAB value LF

Rules that hold here:
- A line is a record, so that a file can be split at any line end and its slices be read in
  parallel. JSON needs no control characters; a value or key that has some, or begins with =,
  is written in base64 behind a =.
- Offsets grow by one from line to line. The offset stands first in each line, so that a
  position in a file is found by binary search, without an index that could be wrong.
- A line without its end is no record: its writer was stopped.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from typing import IO, Final, NamedTuple

from penstock.errors import PenstockError, UsageError

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
        with Path(self.path).open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)
