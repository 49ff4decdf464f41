"""How a CSV file is written: its encoding, what stands between cells, whether it has a header.

    bytes ──▶ byte order mark, valid UTF-8, else Windows-1252
    first line ──▶ the delimiter that finds most of the fields, and whether it names any

Rules that hold here:
- What was detected is told to whoever feeds the file, and each part can be given instead.
- A file without a header is never guessed at: which column is which field has to be said.
- A file in another dialect is read through a copy in ours (UTF-8, comma, header), line by line.
"""

from __future__ import annotations

import codecs
import csv
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import UsageError, quote

DELIMITERS: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
FALLBACK: Final = "cp1252"
PIECE: Final = 1 << 20
LONGEST_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file is written."""

    encoding: str = "utf-8"
    delimiter: str = ","
    header: bool = True

    @property
    def is_ours(self) -> bool:
        """Whether the file can be read as it is."""
        return self.encoding in {"utf-8", "utf-8-sig"} and self.delimiter == "," and self.header

    def __str__(self) -> str:
        """Say it in words."""
        between = DELIMITERS.get(self.delimiter, repr(self.delimiter))
        names = "a header" if self.header else "no header"
        return f"{self.encoding}, {between}, {names}"


def detect(
    path: Path,
    fields: Sequence[str] = (),
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
) -> Dialect:
    """Return how a CSV file is written; `fields` are names that its header may have."""
    known = encoding or _detect_encoding(path)
    try:
        with path.open(encoding=known, newline="") as file:
            line = file.readline(LONGEST_LINE)
    except LookupError:
        raise UsageError(
            f"{quote(known)} is not an encoding", fix="name one such as utf-8, cp1252 or utf-16"
        ) from None
    except UnicodeError:
        raise _refuse_encoding(path, known) from None
    chosen = delimiter or max(DELIMITERS, key=lambda it: _count(line, it, fields))
    named = not fields or bool(set(_split(line, chosen)) & set(fields))
    return Dialect(known, chosen, named)


def _refuse_encoding(path: Path, encoding: str) -> UsageError:
    return UsageError(
        f"{quote(path.name)} is not written in {encoding}",
        fix="name its encoding with --encoding, or leave that out",
    )


def _detect_encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
        for mark, name in MARKS:
            if start.startswith(mark):
                return name
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while piece := file.read(PIECE):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return FALLBACK
    return "utf-8"


def _count(line: str, delimiter: str, fields: Sequence[str]) -> tuple[int, int]:
    """Return how many fields a delimiter finds, and how many cells it makes."""
    cells = _split(line, delimiter)
    return len(set(cells) & set(fields)), len(cells)


def _split(line: str, delimiter: str) -> list[str]:
    cells = next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter), [])
    return [cell.strip().removeprefix("\ufeff") for cell in cells]


def read_rows(path: Path, dialect: Dialect) -> Iterator[list[str]]:
    """Yield the rows of a file."""
    with path.open(encoding=dialect.encoding, newline="") as file:
        try:
            yield from csv.reader(file, delimiter=dialect.delimiter)
        except csv.Error as error:
            raise UsageError(
                f"{quote(path.name)} cannot be read as CSV: {error}",
                fix="check its quotes and its delimiter",
            ) from None
        except UnicodeError:
            raise _refuse_encoding(path, dialect.encoding) from None


@contextmanager
def in_our_dialect(path: Path, dialect: Dialect, columns: Sequence[str]) -> Iterator[Path]:
    """Give a file in UTF-8 with commas and a header; `columns` name those of one without."""
    if dialect.is_ours:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="penstock-feed-") as folder:
        copy = Path(folder) / path.name
        with copy.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            rows = read_rows(path, dialect)
            first = next(rows, None) if dialect.header else list(columns)
            if first is not None:
                writer.writerow([name.strip().removeprefix("\ufeff") for name in first])
            writer.writerows(rows)
        yield copy
