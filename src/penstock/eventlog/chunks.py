"""Chunks with marks for topics in files, as `transactions` has them for Kafka.

    note what comes, and where the topic ends ─→ append ─→ note that it came

Rules that hold here:
- After a crash between the notes, the records with the chunk's key from the noted place on
  are those that arrived; the rest is appended when the chunk is written again. A chunk that
  is written again begins with the same records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.eventlog.files import Topic, sync_folder


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
