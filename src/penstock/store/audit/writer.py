"""Takes entries from enforcement points and appends them in batches, in a thread.

    submit ──► queue (bounded) ──► thread: take a batch, append, acknowledge ──► wait

Rules that hold here:
- Nothing is dropped in silence. An entry that was taken is appended, or `close` raises
  and says how many were not.
- Where the queue is full `submit` blocks for its time and then raises; with no time it
  raises at once. The caller must treat that as a denial: what cannot be recorded must
  not happen.
- While the database is out of reach the batch is kept and tried again; where a commit
  ended in doubt, after a look whether it was made, so that nothing is appended twice.
- A log that was tampered with, or an entry that the database refuses, ends the writer for
  good: all further calls raise, and its health check says so.
- Entries are appended in the order in which they were taken.
- Denials leave a fifth of the queue free, and grants and overrides a tenth: what was done
  (commands, changes, transitions of situations) finds room where no flood does.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from penstock.errors import UnavailableError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import BATCH_LIMIT, AuditLog
from penstock.store.audit.signatures import AuditFullError, AuditStoppedError, UncertainAppendError
from penstock.telemetry import counter, gauge, get_logger, histogram

CAPACITY = 50_000
BATCH = 1000
DELAY = 0.1
RESERVES = {Outcome.DENIED: 5, Outcome.ALLOWED: 10}
"""One part of so many is not for events that ended so."""
RETRY_FIRST = 0.05
RETRY_MOST = 2.0

APPENDED = counter("penstock_audit_appended", "Entries appended to the audit log.").plain
REFUSED = counter(
    "penstock_audit_refused", "Entries not taken because the queue was full or the writer ended."
).plain
WAITING = gauge("penstock_audit_waiting", "Entries taken but not yet appended.").plain
FAILURES = counter("penstock_audit_failures", "Batches that could not be appended at once.").plain
SECONDS = histogram("penstock_audit_append_seconds", "Time to append one batch.").plain

_log = get_logger("audit")


class AuditWriter:
    """A bounded queue in front of an `AuditLog`. Any thread may submit."""

    def __init__(
        self,
        log: AuditLog,
        *,
        capacity: int = CAPACITY,
        batch: int = BATCH,
        delay: float = DELAY,
    ) -> None:
        self._log = log
        self._capacity = capacity
        self._batch = min(batch, capacity, BATCH_LIMIT)
        self._delay = delay
        self._queue: deque[Entry] = deque()
        self._taken = 0  # tickets given out
        self._durable = 0  # tickets appended
        self._wanted = 0  # the highest ticket that somebody waits for
        self._closing = False
        self._error: BaseException | None = None  # what the last append failed with
        self._ended = False
        lock = threading.Lock()
        self._room = threading.Condition(lock)
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._lock = lock
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)
        self._thread.start()

    def submit(self, entry: Entry, *, timeout: float = 0.0) -> int:
        """Take an entry; return the ticket to `wait` with. Where there is no room, raise."""
        parts = RESERVES.get(Outcome(entry.outcome))
        room = self._capacity - (self._capacity // parts if parts else 0)
        with self._lock:
            if len(self._queue) >= room and timeout > 0 and self._is_open():
                self._room.wait_for(lambda: len(self._queue) < room or not self._is_open(), timeout)
            if not self._is_open():
                REFUSED.inc()
                raise self._stopped()
            if len(self._queue) >= room:
                REFUSED.inc()
                raise AuditFullError(
                    f"{len(self._queue)} audit entries wait to be written and there is no room",
                    fix="deny what was to be recorded; see why the database is slow or down",
                )
            self._queue.append(entry)
            self._taken += 1
            if len(self._queue) in {1, self._batch}:
                self._work.notify()
            return self._taken

    def wait(self, ticket: int, *, timeout: float = 10.0) -> None:
        """Wait until the entry of this ticket is durable; raise where it is not in time."""
        with self._lock:
            self._wanted = max(self._wanted, ticket)
            self._work.notify()
            self._done.wait_for(lambda: self._durable >= ticket or self._ended, timeout)
            if self._durable >= ticket:
                return
            if self._ended:
                raise self._stopped()
        raise UnavailableError(
            f"the audit entry was not written within {timeout:g} s",
            fix="see why the database is slow or down; the entry is still tried",
        )

    def flush(self, *, timeout: float = 10.0) -> None:
        """Wait until all entries taken so far are durable."""
        with self._lock:
            ticket = self._taken
        self.wait(ticket, timeout=timeout)

    def check(self) -> str | None:
        """Say what is wrong, as a health check."""
        with self._lock:
            if not self._is_open():
                return "the audit writer has ended"
            if self._error is not None:
                return f"the audit log cannot be written: {type(self._error).__name__}"
            if len(self._queue) >= self._capacity:
                return "the queue of the audit writer is full"
        return None

    def close(self, *, timeout: float = 10.0) -> None:
        """Append what was taken and end; raise where entries had to be given up."""
        with self._lock:
            self._closing = True
            self._work.notify()
            self._room.notify_all()
        self._thread.join(timeout)
        with self._lock:
            left = self._taken - self._durable
            self._ended = True
            self._work.notify()
            self._done.notify_all()
        if left:
            _log.critical("audit entries were lost", count=left)
            raise AuditStoppedError(
                f"{left} audit entries could not be written before the end"
            ) from self._error
        self._log.close()

    def _is_open(self) -> bool:
        return not self._closing and not self._ended

    def _stopped(self) -> AuditStoppedError:
        reason = f": {type(self._error).__name__}" if self._error else ""
        return AuditStoppedError(f"the audit writer has ended{reason}", fix="restart the process")

    def _run(self) -> None:
        while batch := self._next_batch():
            if not self._append(batch):
                return

    def _next_batch(self) -> list[Entry]:
        """Wait for entries; return none where the writer is closing and all is written."""
        with self._lock:
            self._work.wait_for(lambda: self._queue or self._closing)
            if self._delay and len(self._queue) < self._batch:
                self._work.wait_for(self._is_urgent, self._delay)
            # The entries stay in the queue until they are durable: they still take room.
            return [entry for entry, _ in zip(self._queue, range(self._batch), strict=False)]

    def _is_urgent(self) -> bool:
        full = len(self._queue) >= self._batch
        return full or self._closing or self._wanted > self._durable

    def _append(self, batch: list[Entry]) -> bool:
        delay = RETRY_FIRST
        uncertain: UncertainAppendError | None = None
        while True:
            started = time.perf_counter()
            try:
                if uncertain is None or not self._log.holds(uncertain.size, uncertain.root):
                    uncertain = None
                    self._log.append(batch)
            except UnavailableError as error:
                if isinstance(error, UncertainAppendError):
                    uncertain = error
                if not self._keep_trying(error, delay):
                    return False
                delay = min(delay * 2, RETRY_MOST)
            except Exception as error:  # noqa: BLE001 (whatever it is, the writer must not go on)
                self._end(error)
                return False
            else:
                SECONDS.observe(time.perf_counter() - started)
                self._acknowledge(len(batch))
                return True

    def _keep_trying(self, error: UnavailableError, delay: float) -> bool:
        FAILURES.inc()
        _log.error("the audit log cannot be written; trying again", error=error, delay_s=delay)
        with self._lock:
            self._error = error
            WAITING.set(len(self._queue))
            self._work.wait_for(lambda: self._ended, delay)
            return not self._ended

    def _end(self, error: BaseException) -> None:
        _log.critical("the audit writer ends", error=error)
        with self._lock:
            self._error = error
            self._ended = True
            self._room.notify_all()
            self._done.notify_all()

    def _acknowledge(self, count: int) -> None:
        APPENDED.inc(count)
        with self._lock:
            for _ in range(count):
                self._queue.popleft()
            self._durable += count
            self._error = None
            WAITING.set(len(self._queue))
            self._room.notify_all()  # denials need more room than others
            self._done.notify_all()
