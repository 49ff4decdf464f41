"""The thread that writes batches of messages to the event log.

Rules that hold here:
- One batch at a time, in the order in which they are given.
- A batch that failed halfway is taken up where it stopped: streams that have their records
  do not get them twice. What a log may have kept of the append that failed, it may get
  again: a record is written at least once.
- A log that hangs holds up this thread alone, and never the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.gateway.recording.feeds import Feed, Target


class Appendable(Protocol):
    """A topic of an event log, as far as it is needed here."""

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> Any:
        """Append records, and return when they will not be lost."""


OpenTopic = Callable[[Target], Appendable]


class Entry(NamedTuple):
    """A message that was accepted, and when."""

    feeds: tuple[Feed, ...]
    topic: str
    payload: bytes
    milliseconds: int
    size: int
    publisher: str | None = None


class Batch:
    """Messages that are written together."""

    def __init__(self, entries: Sequence[Entry], ticket: int) -> None:
        self.entries = entries
        self.ticket = ticket
        """Of the last of them."""
        self._left: dict[Target, tuple[list[bytes], list[bytes]]] | None = None

    def write(self, open_topic: OpenTopic) -> None:
        """Append what is not written yet, stream by stream."""
        if self._left is None:
            self._left = self._make_records()
        for target in list(self._left):
            keys, values = self._left[target]
            open_topic(target).append(values, keys, milliseconds=self.entries[0].milliseconds)
            del self._left[target]

    def _make_records(self) -> dict[Target, tuple[list[bytes], list[bytes]]]:
        made: dict[Target, tuple[list[bytes], list[bytes]]] = {}
        for entry in self.entries:
            for feed in entry.feeds:
                keys, values = made.setdefault(feed.target, ([], []))
                key, value = feed.record(entry.topic, entry.payload, entry.publisher)
                keys.append(key)
                values.append(value)
        return made


class LogWriter:
    """A thread, from its first batch on."""

    def __init__(self, open_topic: OpenTopic) -> None:
        self._open_topic = open_topic
        self._inbox: queue.SimpleQueue[tuple[Batch, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def write(self, batch: Batch) -> asyncio.Future[None]:
        """Write a batch; the future ends when the log has it, or with what went wrong."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            # As a daemon: were it to hang, the process could not end otherwise.
            self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
            self._thread.start()
        self._inbox.put((batch, done))
        return done

    def close(self) -> None:
        """Let the thread end after what it was given."""
        self._inbox.put(None)

    def _run(self) -> None:
        while (given := self._inbox.get()) is not None:
            batch, done = given
            error: Exception | None = None
            try:
                batch.write(self._open_topic)
            except Exception as raised:  # noqa: BLE001 - whoever waits for it deals with it
                error = raised
            # The loop may have ended while the log took its time.
            with contextlib.suppress(RuntimeError):
                done.get_loop().call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
