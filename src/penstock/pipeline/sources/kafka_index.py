"""Leads from a running offset of a stream to partitions of a Kafka topic and their offsets.

    {"first":0,"topic":"…","starts":{"0":0,"1":0},"ends":{"0":70,"1":30}}     offsets 0 to 99
    {"first":100,"topic":"…","starts":{"0":70,"1":30},"ends":{"0":72,"1":30}} offsets 100, 101

Rules that hold here:
- A line stands for a stretch of each partition, partition after partition. It is on the disk
  before the first of its offsets is used, and never changes its meaning.
- Who opens the index only to look changes nothing: another process may be writing.
- An offset that holds no record (a mark of a transaction, what was undone) stays unused.
- A topic that was deleted and made again is another topic: its offsets begin anew, and those
  that were taken in of the former one lead to nothing.
- A line for each look would pile up. Lines are joined where that changes no offset: when what
  the later one has comes behind what the former has, partition by partition, as it always
  does with one partition. What Kafka has forgotten, and topics that are gone, become one line:
  its offsets lead to nothing either way. So the index is bounded by what Kafka keeps.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

FILE: Final = "kafka.jsonl"
# So many lines may be joined before the file is written anew.
JOIN: Final = 1000


class Piece(NamedTuple):
    """Offsets of a partition, and the running offset of the first of them."""

    topic: str
    partition: int
    start: int
    end: int
    first: int


class Line(NamedTuple):
    """A stretch of each partition."""

    first: int
    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def next(self) -> int:
        """The running offset behind the last."""
        return self.first + sum(self.ends[it] - self.starts[it] for it in self.ends)

    def pieces(self) -> Iterator[Piece]:
        """Yield the stretches of the partitions that have any."""
        first = self.first
        for number in sorted(self.ends):
            start, end = self.starts[number], self.ends[number]
            if start < end:
                yield Piece(self.topic, number, start, end, first)
            first += end - start

    def join(self, later: Line) -> Line | None:
        """Return this and the next line as one, where that changes no offset."""
        if self.topic != later.topic:
            return None
        mine = [number for number in self.ends if self.starts[number] < self.ends[number]]
        others = [number for number in later.ends if later.starts[number] < later.ends[number]]
        # Partitions stand in order in a line; those of the later one must not come between.
        if mine and others and max(mine) > min(others):
            return None
        return self.extend(later)

    def extend(self, later: Line) -> Line:
        """Return one line with all offsets of this and the next, perhaps in another order."""
        # A line begins where the former ended; partitions may have been added between.
        return self._replace(starts={**later.starts, **self.starts}, ends=later.ends)

    def is_gone(self, topic: str, ends: Mapping[int, tuple[int, int]]) -> bool:
        """Whether the store has nothing of this line any more."""
        if self.topic != topic:
            return True
        return all(end <= ends[it][0] for it, end in self.ends.items() if it in ends)

    def to_json(self) -> str:
        """Write the line."""
        return json.dumps(self._asdict(), separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read a line."""
        found = json.loads(text)
        for key in ("starts", "ends"):
            found[key] = {int(number): offset for number, offset in found[key].items()}
        return cls(**found)


class KafkaIndex:
    """The index of one stream; one process writes it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lines: list[Line] = []
        self._written = 0
        # Looking for what is gone pays only now and then.
        self._limit = JOIN
        self._torn = False
        self._load()

    @property
    def next_offset(self) -> int:
        """The running offset that the next record will get."""
        return self._lines[-1].next if self._lines else 0

    @property
    def topic(self) -> str | None:
        """What tells the topic that was seen last from others of its name."""
        return self._lines[-1].topic if self._lines else None

    def take_in(self, topic: str, ends: Mapping[int, tuple[int, int]], rows: int) -> int:
        """Give running offsets to what is new in the partitions, in rounds of about `rows`."""
        known = self._lines[-1].ends if self.topic == topic else {}
        starts = {number: known.get(number, first) for number, (first, _) in ends.items()}
        goals = {number: max(end, starts[number]) for number, (_, end) in ends.items()}
        share = max(1, rows // max(1, len(ends)))
        fresh: list[Line] = []
        while starts != goals:
            reached = {it: min(goals[it], starts[it] + share) for it in goals}
            line = Line(fresh[-1].next if fresh else self.next_offset, topic, starts, reached)
            fresh.append(line)
            starts = reached
        self._append(fresh)
        if self._written > JOIN + len(self._lines) or len(self._lines) > self._limit:
            self._forget(topic, ends)
            self._rewrite()
        return self.next_offset

    def locate(self, start: int, end: int) -> list[Piece]:
        """Return what holds the running offsets from `start` to before `end`."""
        found = []
        place = max(0, bisect_right(self._lines, start, key=lambda line: line.first) - 1)
        for line in self._lines[place:]:
            if line.first >= end:
                break
            for piece in line.pieces():
                skip = max(0, start - piece.first)
                length = min(piece.end - piece.start, end - piece.first)
                if skip < length:
                    low, high = piece.start + skip, piece.start + length
                    found.append(Piece(line.topic, piece.partition, low, high, piece.first + skip))
        return found

    def _append(self, lines: list[Line]) -> None:
        if not lines:
            return
        if self._torn:
            self._rewrite()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write("".join(line.to_json() for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self._written += len(lines)
        for line in lines:
            self._add(line)

    def _add(self, line: Line) -> None:
        joined = self._lines[-1].join(line) if self._lines else None
        if joined is None:
            self._lines.append(line)
        else:
            self._lines[-1] = joined

    def _load(self) -> None:
        if not self._path.exists():
            return
        whole = 0
        with self._path.open("rb") as file:
            for text in file:
                # What a stopped process left of a line is none; nobody used it.
                if text.endswith(b"\n"):
                    self._add(Line.from_json(text))
                    self._written, whole = self._written + 1, whole + len(text)
        self._torn = whole < self._path.stat().st_size
        self._limit = len(self._lines) + JOIN

    def _forget(self, topic: str, ends: Mapping[int, tuple[int, int]]) -> None:
        """Join lines that lead to nothing, a topic at a time."""
        kept: list[Line] = []
        for line in self._lines:
            gone = line.is_gone(topic, ends)
            if gone and kept and kept[-1].topic == line.topic and kept[-1].is_gone(topic, ends):
                kept[-1] = kept[-1].extend(line)
            else:
                kept.append(line)
        self._lines = kept

    def _rewrite(self) -> None:
        partial = self._path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write("".join(line.to_json() for line in self._lines).encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self._written = len(self._lines)
        self._limit = 2 * len(self._lines) + JOIN
        self._torn = False
