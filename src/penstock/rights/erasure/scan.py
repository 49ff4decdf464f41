"""The scan of bytes: where a person's name still stands in the files of an installation.

Rules that hold here:
- All files below the folders of Penstock are read, as bytes; those that are compressed (Parquet,
  Avro) by their values.
- The name is sought as a whole word, in the spellings that JSON has for it: `ann` is not found in
  `anna`. What is found may still be somebody else's: a short name is a word like others.
- What is found is told by file, never by content.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog.erasure import Keep

LISTED: Final = 50
_WORD: Final = rb"0-9A-Za-z_"


@dataclass(slots=True)
class ScanReport:
    """What was read, and where the name was found."""

    files: int = 0
    bytes: int = 0
    found: int = 0
    places: dict[str, int] = field(default_factory=dict)
    """File → how often; the first of them."""

    def as_data(self) -> dict[str, Any]:
        """Return it for the evidence."""
        return {
            "files": self.files, "bytes": self.bytes, "found": self.found,
            "places": dict(sorted(self.places.items())),
        }  # fmt: skip


def make_pattern(person: str) -> re.Pattern[bytes]:
    """Return what finds a name as a whole word."""
    spellings = {
        person.encode(),
        json.dumps(person)[1:-1].encode(),
        json.dumps(person, ensure_ascii=False)[1:-1].encode(),
    }
    either = b"|".join(sorted(re.escape(it) for it in spellings))
    return re.compile(rb"(?<![%b])(?:%b)(?![%b])" % (_WORD, either, _WORD))


def scan(folders: Iterable[Path], person: str, keep: Keep) -> ScanReport:
    """Read all files below folders."""
    pattern, report = make_pattern(person), ScanReport()
    seen: set[Path] = set()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path in seen or path.is_symlink() or not path.is_file():
                continue
            seen.add(path)
            keep()
            try:
                found = sum(1 for piece in _pieces(path) for _ in pattern.finditer(piece))
                report.bytes += path.stat().st_size
            except FileNotFoundError:
                continue  # a file of a moment
            report.files += 1
            report.found += found
            if found and len(report.places) < LISTED:
                report.places[str(path.relative_to(folder))] = found
    return report


def _pieces(path: Path) -> Iterator[Any]:
    if path.suffix in {".parquet", ".avro"}:
        try:
            yield from _values(path)
        except (pa.ArrowException, ValueError, EOFError, KeyError, IndexError):
            pass  # not such a file in spite of its name, or not whole yet: its bytes tell
        else:
            return
    if path.stat().st_size:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _values(path: Path) -> Iterator[bytes]:
    if path.suffix == ".parquet":
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            for column in batch.columns:
                yield "\n".join(str(it) for it in column.to_pylist()).encode(errors="replace")
        return
    with path.open("rb") as file:
        for row in fastavro.reader(file):
            yield "\n".join(map(str, row.values())).encode(errors="replace")  # type: ignore[union-attr]
