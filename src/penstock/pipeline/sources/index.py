"""Which files a stream has taken in, in which order: the way from an offset to a row of a file.

    files.jsonl   one line per file: the offset of its first row, its blocks, how it was then

Rules that hold here:
- A file counts from the moment its line is on the disk. From then on its rows have their
  offsets, whatever else appears in the folder.
- A file that was taken in stays as it is, as long as somebody may want to read it: one that
  changed is told, whether it would be read again or not; one that is gone, when it is.
- Files appear whole, under their names, as renaming does it. Names that begin with . or _ are
  passed over, and so are names without an ending of the format.
- Several processes may look for files; they take turns by a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from penstock.errors import PenstockError, UnavailableError, quote
from penstock.eventlog.files import find_end, sync_folder
from penstock.pipeline.sources.blocks import ENDINGS, Block, survey

INDEX: Final = "files.jsonl"


class ChangedFileError(PenstockError):
    """A file is not as it was when it was taken in."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that was taken in."""

    first: int
    """The offset of its first row."""
    rows: int
    name: str
    size: int
    modified: int
    """When it was changed last, in nanoseconds since 1970."""
    taken: int
    """When it was taken in, in milliseconds since 1970: when its records arrived."""
    header: tuple[str, ...]
    blocks: tuple[Block, ...]
    problem: str | None = None

    def to_line(self) -> bytes:
        """Write the entry as a line."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read a line."""
        data: dict[str, Any] = json.loads(line)
        data["header"] = tuple(data["header"])
        data["blocks"] = tuple(Block(*block) for block in data["blocks"])
        return cls(**data)

    def check(self, folder: Path) -> None:
        """Raise if the file is not as it was."""
        path = folder / self.name
        try:
            state = path.stat()
        except FileNotFoundError:
            raise ChangedFileError(
                f"the file {quote(path)} is gone, which held the records "
                f"{self.first} to {self.first + self.rows - 1}",
                fix="put it back as it was, with its time of change, and start the views again",
            ) from None
        if (state.st_size, state.st_mtime_ns) != (self.size, self.modified):
            raise ChangedFileError(
                f"the file {quote(path)} was changed after its records were taken in",
                fix="put it back as it was, with its time of change; new records go into new files",
            )


class Piece(NamedTuple):
    """Rows of one block of a file, or the one row that stands for what is wrong with it."""

    entry: Entry
    block: Block | None
    skip: int
    rows: int
    offset: int


class FileIndex:
    """The files of a folder, in the order in which they were taken in."""

    def __init__(self, folder: Path, source: Path, form: str) -> None:
        self.source = source
        self.form = form
        self._folder = folder
        self._path = folder / INDEX
        self._entries: list[Entry] = []
        self._read = 0

    @property
    def next_offset(self) -> int:
        """The offset that the first row of the next file gets."""
        self._refresh()
        return _end(self._entries)

    def take_in(self, until: int | None = None) -> int:
        """Take new files in, at most as many as reach an offset; return the next offset."""
        fresh = self._look()
        if not fresh:
            return self.next_offset
        with self._locked():
            self._refresh()
            known = {entry.name for entry in self._entries}
            for name, size, modified in fresh:
                if until is not None and _end(self._entries) >= until:
                    break
                if name not in known:
                    self._add(name, size, modified)
        return self.next_offset

    def check(self) -> None:
        """Raise if a file that was taken in is there, and is not as it was."""
        self._refresh()
        present = {name: (size, modified) for name, size, modified in self._list()}
        for entry in self._entries:
            found = present.get(entry.name)
            if found is not None and found != (entry.size, entry.modified):
                entry.check(self.source)

    def check_stretch(self, start: int, end: int) -> None:
        """Raise if a file with rows of a stretch is gone or is not as it was."""
        for entry in {piece.entry.name: piece.entry for piece in self.locate(start, end)}.values():
            entry.check(self.source)

    def locate(self, start: int, end: int) -> list[Piece]:
        """Return the pieces that hold the rows from `start` to before `end`, in order."""
        self._refresh()
        found = []
        at = bisect_right([entry.first for entry in self._entries], start) - 1
        for entry in self._entries[max(0, at) :]:
            if entry.first >= end:
                break
            found += list(_cut(entry, start, end))
        return found

    def _look(self) -> list[tuple[str, int, int]]:
        """Return the files that are not known yet, oldest first."""
        self._refresh()
        known = {entry.name for entry in self._entries}
        fresh = [item for item in self._list() if item[0] not in known]
        return sorted(fresh, key=lambda item: (item[2], item[0]))

    def _list(self) -> list[tuple[str, int, int]]:
        found = []
        try:
            with os.scandir(self.source) as items:
                for item in items:
                    ending = os.path.splitext(item.name)[1]  # noqa: PTH122 - a name, no path
                    hidden = item.name.startswith((".", "_"))
                    if not hidden and ENDINGS.get(ending) == self.form and item.is_file():
                        state = item.stat()
                        found.append((item.name, state.st_size, state.st_mtime_ns))
        except OSError as error:
            raise UnavailableError(
                f"the folder {quote(self.source)} cannot be read: {error.strerror}",
                fix="create it, and let the pipeline read it",
            ) from None
        return found

    def _add(self, name: str, size: int, modified: int) -> None:
        path = self.source / name
        try:
            found = survey(path, self.form)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnavailableError(
                f"the file {quote(path)} cannot be read: {error.strerror}",
                fix="let the pipeline read it, or move it away",
            ) from None
        rows = sum(block.rows for block in found.blocks) + (found.problem is not None)
        entry = Entry(
            first=_end(self._entries),
            rows=rows,
            name=name,
            size=size,
            modified=modified,
            taken=time.time_ns() // 1_000_000,
            header=found.header,
            blocks=found.blocks,
            problem=found.problem,
        )
        try:
            entry.check(self.source)
        except ChangedFileError:
            return  # somebody is at it; it is looked at again later
        with self._path.open("ab") as file:
            file.write(entry.to_line())
            file.flush()
            os.fsync(file.fileno())
        self._refresh()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = not self._path.exists()
            with self._path.open("ab+") as file:
                # What a stopped process left of a line is no entry.
                file.truncate(find_end(file))
            if fresh:
                sync_folder(self._folder)
            yield

    def _refresh(self) -> None:
        """Read the lines that were added since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):
                    self._entries.append(Entry.from_line(line))
                    self._read += len(line)


def _end(entries: Sequence[Entry]) -> int:
    return entries[-1].first + entries[-1].rows if entries else 0


def _cut(entry: Entry, start: int, end: int) -> Iterator[Piece]:
    offset = entry.first
    for block in (*entry.blocks, None):
        rows = block.rows if block is not None else int(entry.problem is not None)
        low, high = max(start, offset), min(end, offset + rows)
        if low < high:
            yield Piece(entry, block, low - offset, high - low, low)
        offset += rows
