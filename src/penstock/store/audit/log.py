"""The audit log as it is written.

Rules that hold here:
- Appending is one transaction: entries, tree and signed head become visible together or
  not at all. Writers of all processes come one after another, so `seq` has no gaps.
- A signature is never put on what was not signed before: the tip has to carry a good
  signature, its edge has to lead to the signed root, and the log has to extend what
  this process last saw of it. Otherwise nothing is appended, ever, until a person looks.
- The newest head is also kept in a file outside the database (the *anchor*), at most
  once a second: after a restart a log that was set back is still noticed.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from penstock.config.secrets import Secret, SecretFile
from penstock.errors import UnavailableError, UsageError
from penstock.store.audit import merkle
from penstock.store.audit.entry import Entry, Outcome, encode
from penstock.store.audit.reader import Tip, read_checkpoint, read_nodes, read_tip, witnesses
from penstock.store.audit.reader import heads as heads_table
from penstock.store.audit.reader import tip as tip_table
from penstock.store.audit.signatures import (
    Head,
    Signer,
    TamperedError,
    UncertainAppendError,
    anchor_path,
    load_head,
    save_head,
)
from penstock.store.database import Database, lock_area
from penstock.telemetry import get_logger

AREA = "audit"
BATCH_LIMIT = 100_000
HEAD_EVERY = 60_000_000  # microseconds between the heads that are kept in the database
ANCHOR_EVERY = 1.0
STARTED = "audit.started"

_INSERT = (
    "INSERT INTO audit_entries"
    " (seq, time, kind, outcome, actor, subject, rule, epoch, details, hashes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_COPY = (
    "COPY audit_entries"
    " (seq, time, kind, outcome, actor, subject, rule, epoch, details, hashes) FROM STDIN"
)

_log = get_logger("audit")


class AuditLog:
    """Appends to the log of one database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        signer: Signer,
        *,
        anchor: Path | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.database = database
        self.signer = signer
        self._clock = clock
        self._anchor = anchor
        self._anchored = 0.0
        self._lock = threading.Lock()
        self._seen: Head | None = None
        self._loaded: Head | None = None
        self._unseen = False  # appended within transactions that others may have undone
        if anchor is not None and anchor.exists():
            self._seen = self._loaded = load_head(anchor)
            signer.public_keys.check(self._seen)

    @classmethod
    def open(cls, database: Database, secret: Secret) -> Self:
        """Open the log with its signing key; the anchor stands beside a key file."""
        signer = Signer.open(secret)
        anchor = anchor_path(secret.path) if isinstance(secret, SecretFile) else None
        return cls(database, signer, anchor=anchor)

    def append(self, entries: Sequence[Entry]) -> Head:
        """Append entries durably, in their order; return the head that covers them."""
        head: Head | None = None
        try:
            with self.database.write(AREA) as connection:
                head = self._append(connection, entries)
        except UnavailableError as error:
            if head is None:
                raise
            raise UncertainAppendError(head.size, head.root) from error
        self._note(head)
        return head

    def holds(self, size: int, root: bytes) -> bool:
        """Tell whether the log extends a tree of this size and root.

        It waits its turn among the writers, so that no commit is still under way.
        """
        with self.database.write(AREA) as connection:
            return extends(connection, size, root, read_tip(connection).head)

    def append_within(self, connection: Connection, entries: Sequence[Entry]) -> Head:
        """Append entries as part of a transaction of `Database.write`: all of it, or nothing."""
        self._unseen = True
        lock_area(connection, AREA)
        return self._append(connection, entries)

    def close(self) -> None:
        """Keep the newest head, also of what was appended within other transactions."""
        if self._anchor is not None and self._unseen:
            self.refresh()
        self._keep(at_once=True)
        if self._anchor is not None and self._seen is not None and self._seen != self._loaded:
            # The log may grow and be pruned by others before this anchor is looked at again.
            with contextlib.suppress(UnavailableError):
                note_witness(self.database, _anchor_name(self._anchor), self._seen)

    def refresh(self) -> Head:
        """Look at what others appended, and keep the newest head outside the database.

        Who holds a log open does so now and then: pruning leaves nothing that would connect the
        log with what was seen long ago.
        """
        with self.database.read() as connection:
            tip = read_tip(connection)
            self._checked_edge(connection, tip)
        self._note(tip.head)
        self._keep(at_once=True)
        return tip.head

    def _append(self, connection: Connection, entries: Sequence[Entry]) -> Head:
        if not 0 < len(entries) <= BATCH_LIMIT:
            raise UsageError(f"cannot append {len(entries)} entries", fix=f"1 to {BATCH_LIMIT}")
        tip = read_tip(connection)
        edge = self._checked_edge(connection, tip)
        now = max(self._clock() // 1000, tip.time)
        if tip.size == 0:
            entries = [self._first_entry(now), *entries]
        rows = []
        for seq, entry in enumerate(entries, tip.size):
            completed = edge.append(merkle.hash_leaf(encode(seq, entry)))
            rows.append(
                (
                    seq,
                    entry.time,
                    entry.kind,
                    entry.outcome,
                    entry.actor,
                    entry.subject,
                    entry.rule,
                    entry.epoch,
                    entry.details,
                    b"".join(completed),
                )
            )
        self._insert(connection, rows)
        head = self.signer.sign(edge.size, edge.root(), now)
        self._replace_tip(connection, tip, bytes(edge), head)
        return head

    def _first_entry(self, now: int) -> Entry:
        # Random, so that no two logs share a root: the head of one is none of another.
        identity = secrets.token_hex(16)
        return Entry.make(STARTED, Outcome.DONE, at=now, log=identity, key=self.signer.key)

    def _checked_edge(self, connection: Connection, tip: Tip) -> merkle.Frontier:
        if tip.size:
            self.signer.public_keys.check(tip.head)
        edge = tip.edge()
        seen = self._seen
        if seen is None or (seen.size == tip.size and seen.root == tip.root):
            return edge
        if not self._extends_seen(connection, seen, tip):
            raise TamperedError(
                f"the audit log of size {tip.size} does not extend what it was at size {seen.size}",
                fix="run `penstock audit verify`; if you restored a backup or use another database"
                " on purpose, remove the .head file beside the signing key",
            )
        return edge

    def _extends_seen(self, connection: Connection, seen: Head, tip: Tip) -> bool:
        before = read_checkpoint(connection).before
        if seen.size < before <= tip.size:
            # Another process of this machine may have kept the head more recently.
            anchored = load_head(self._anchor) if self._anchor and self._anchor.exists() else seen
            self.signer.public_keys.check(anchored)
            if anchored.size > seen.size:
                seen = anchored
        try:
            return extends(connection, seen.size, seen.root, tip.head)
        except TamperedError as error:
            if seen.size >= before:
                raise
            raise TamperedError(
                f"entries before {before} of the audit log were pruned since it was last seen here,"
                f" at size {seen.size}, and nothing is left that connects the two",
                fix="run `penstock audit verify`; if all is well, remove the .head file beside the"
                " signing key and restart",
            ) from error

    def _insert(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        if not self.database.is_postgresql:
            connection.exec_driver_sql(_INSERT, rows)
            return
        # COPY takes a third of the time of the fastest INSERT, but SQLAlchemy knows nothing
        # of it, so its errors are put in the form that `Database.write` understands.
        driver: Any = connection.connection.driver_connection
        try:
            with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                for row in rows:
                    copy.write_row(row)
        except connection.dialect.loaded_dbapi.OperationalError as error:
            raise OperationalError(_COPY, None, error) from error

    def _replace_tip(self, connection: Connection, old: Tip, edge: bytes, head: Head) -> None:
        kept = old.kept
        values = {
            "size": head.size,
            "root": head.root,
            "time": head.time,
            "key": head.key,
            "signature": head.signature,
        }
        if head.time - kept >= HEAD_EVERY:
            connection.execute(sa.insert(heads_table).values(**values))
            kept = head.time
        connection.execute(sa.update(tip_table).values(frontier=edge, kept=kept, **values))

    def _note(self, head: Head) -> None:
        with self._lock:
            if head.size > (self._seen.size if self._seen else 0):
                self._seen = head
        self._keep()

    def _keep(self, *, at_once: bool = False) -> None:
        if self._anchor is None:
            return
        with self._lock:
            now = time.monotonic()
            if self._seen is None or not (at_once or now - self._anchored >= ANCHOR_EVERY):
                return
            self._anchored = now
            try:
                save_head(self._anchor, self._seen)
            except OSError as error:
                # The entries are safe; what is lost is the witness outside the database.
                _log.error("cannot keep the newest head of the audit log", error=error)


def note_witness(database: Database, name: str, head: Head) -> None:
    """Note that somebody keeps this head, so that pruning leaves what connects it with the log."""
    with database.write(AREA) as connection:
        connection.execute(sa.delete(witnesses).where(witnesses.c.name == name))
        row = {"name": name, "size": head.size, "time": head.time}
        connection.execute(sa.insert(witnesses).values(**row))


def _anchor_name(anchor: Path) -> str:
    place = f"{socket.gethostname()}\0{anchor.absolute()}"
    return f"anchor {sha256(place.encode()).hexdigest()[:32]}"


def extends(connection: Connection, size: int, root: bytes, newest: Head) -> bool:
    """Tell whether the log, with this newest head, extends a tree of this size and root."""
    if newest.size < size:
        return False
    ranges = merkle.consistency_ranges(size, newest.size)
    path = merkle.hash_ranges(ranges, read_nodes(connection, merkle.needed_nodes(ranges)))
    return merkle.is_consistent(size, root, newest.size, newest.root, path)
