"""Pieces of the log's files, which can be read by anyone who sees the files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


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
