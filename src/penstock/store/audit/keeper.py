"""Prunes the audit log in the background, in whichever processes hold it open.

Rules that hold here:
- Every look also takes in what others appended, so that each process can connect what it saw
  with a log that another one pruned. So the log is looked at even where nothing is due.
- Entries are not pruned one by one: a pruning adds an entry of its own. It waits until many
  are due, or for a day.
- What fails is logged, counted and tried again at the next look; appending goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.config.sections.store import AuditSettings
from penstock.errors import PenstockError
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pruning import Retention, plan_pruning, prune
from penstock.store.audit.reader import read_checkpoint, read_one
from penstock.telemetry import counter, get_logger

MANY: Final = 1000
LONGEST_WAIT: Final = 24 * 3600.0

PRUNED_ENTRIES = counter("penstock_audit_pruned", "Entries pruned from the audit log.").plain
FAILURES = counter("penstock_audit_prune_failures", "Looks for old entries that failed.").plain

_log = get_logger("audit")


class AuditKeeper:
    """Looks at a log every so often and prunes what is due."""

    def __init__(self, log: AuditLog, settings: AuditSettings) -> None:
        self._log = log
        self._retention = Retention.of(settings)
        self._every = settings.prune_every

    def look(self) -> int:
        """Prune if enough is due; return how many entries went."""
        self._log.refresh()
        if not self._is_worth_it():
            return 0
        done = prune(self._log, self._retention)
        count = done.count if done else 0
        PRUNED_ENTRIES.inc(count)
        if done is not None:
            _log.info("pruned the audit log", count=count, size=done.before)
        return count

    def _is_worth_it(self) -> bool:
        with self._log.database.read() as connection:
            due = plan_pruning(connection, self._retention, time.time())
            last = read_one(connection, read_checkpoint(connection).entry)
        if due is None:
            return False
        waited = float("inf") if last is None else time.time() - last.entry.time / 1e6
        return due.count >= MANY or waited >= LONGEST_WAIT

    def run(self, stop: threading.Event) -> None:
        """Look every so often until told to stop."""
        while not stop.wait(self._every):
            try:
                self.look()
            except PenstockError as error:
                FAILURES.inc()
                _log.error("the audit log was not pruned; trying again later", error=error)


@contextmanager
def keep_pruned(log: AuditLog, settings: AuditSettings) -> Iterator[None]:
    """Prune a log in a thread for as long as the block lasts."""
    stop = threading.Event()
    keeper = AuditKeeper(log, settings)
    thread = threading.Thread(target=keeper.run, args=(stop,), name="audit-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
