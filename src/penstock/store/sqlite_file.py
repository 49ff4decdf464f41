"""The file of an embedded store: how it is made, opened, watched and closed.

SQLite keeps processes apart by POSIX record locks on the database file. The kernel drops all
locks that a process has on a file as soon as the process closes *any* descriptor of it. Another
process then takes itself for the last one and deletes the write-ahead log under those who still
use it: they read what is old, and what they write is lost.

Rules that hold here:
- Nothing but SQLite opens the database, its log or its index. A new file is made by `mknod`,
  which opens nothing; a connection never makes one.
- A connection knows its files, the database and the log, by their inodes. One whose files are no
  longer those on disk is not used again.
- All connections of a process to one database share one index of the log, the deleted one if it
  comes to that. So where the log was replaced, all connections to the old one are closed before a
  new one is opened. Until then there is no access.
- The last of them would copy its log into the database and delete the new log by its name.
  Another lock keeps it from that.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from penstock.errors import UnavailableError
from penstock.telemetry.logs import get_logger, safe_text

MODE = 0o600
_PAUSE = 0.01
# Bytes that SQLite locks for reading as long as a connection in WAL mode is open.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510

_log = get_logger("store")

Inode = tuple[int, int]


@safe_text
class FileReplacedError(UnavailableError):
    """The files of an open connection are no longer those on disk."""


class Files(NamedTuple):
    """Which files a store consists of; None where there is none."""

    database: Inode | None
    log: Inode | None


def create_file(path: Path) -> None:
    """Make an empty database that its owner alone may read, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # SQLite would let everybody read a new file; its companions take its mode over.
        os.mknod(path.resolve(), MODE)
    except FileExistsError:
        return


class FileConnection(sqlite3.Connection):
    """A connection that knows the files it was opened on."""

    path: Path
    log_path: str
    files: Files
    in_use = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.guard = threading.Lock()

    def is_current(self) -> bool:
        """Say whether its files are still those on disk."""
        return self.files == Files(_inode(self.path), _inode(self.log_path))

    def take(self) -> bool:
        """Begin to use it; false if it must not be used again."""
        with self.guard:
            self.in_use = self in _open and self.is_current()
            return self.in_use

    def give_back(self) -> None:
        """Use it no longer, for now."""
        self.in_use = False

    def close(self) -> None:
        """Close it; a log that is not its own is left as it is."""
        with _gate:
            lost = self in _open and _inode(self.path) == self.files.database and (
                _inode(self.log_path) != self.files.log
            )  # fmt: skip
            if lost:
                _log.error("the log of the store was moved away or replaced while it was in use")
                _keep_open(self.path, self.files.database)
            try:
                super().close()
            finally:
                _open.discard(self)
                if lost:
                    _release(self.files.database)


_gate = threading.RLock()
_open: WeakSet[FileConnection] = WeakSet()
# Descriptors of databases whose log was lost. They stay open: closing one would drop locks.
_descriptors: dict[Inode | None, int] = {}


def connect(path: Path, *, patience: float, **options: Any) -> FileConnection:
    """Open a connection to an existing database, and set it up."""
    path = path.absolute()
    real = path.resolve()
    with _gate:
        before = Files(_inode(path), _inode(f"{real}-wal"))
        _close_stale(path, before)
        made: FileConnection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, factory=FileConnection, **options
        )
        made.path, made.log_path = path, f"{real}-wal"
        try:
            _set_up(made, before, patience)
        except BaseException:
            made.close()
            raise
        _open.add(made)
        return made


def _set_up(made: FileConnection, before: Files, patience: float) -> None:
    # Python's own handling of transactions is switched off; see `engines`.
    made.isolation_level = None
    _use_wal(made, patience)
    made.execute("PRAGMA synchronous=FULL")
    made.execute("PRAGMA foreign_keys=ON")
    # The log is opened, and kept from being deleted, by the first read.
    made.execute("PRAGMA schema_version").fetchone()
    made.files = Files(_inode(made.path), _inode(made.log_path))
    if made.files.database != before.database:
        raise _replaced(made.path)


def _close_stale(path: Path, now: Files) -> None:
    """Close connections to an older log of the same database; raise if one is in use."""
    for other in list(_open):
        if other.files.database == now.database and other.files.log != now.log:
            with other.guard:
                if other.in_use:
                    raise _replaced(path)
                other.close()


def _replaced(path: Path) -> FileReplacedError:
    return FileReplacedError(
        f"the file {path} or its log was moved away or replaced while it was in use",
        fix="let no other program change the files of the store while Penstock runs",
    )


def _inode(path: Path | str) -> Inode | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (a third of the cost of Path.stat on a hot path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _keep_open(path: Path, database: Inode | None) -> None:
    """Hold the lock that an open connection of another process would hold.

    It belongs to a descriptor, not to the process, so it stands against SQLite's own.
    """
    if database not in _descriptors:
        _descriptors[database] = os.open(path, os.O_RDONLY)
    _set_lock(_descriptors[database], fcntl.F_RDLCK)


def _release(database: Inode | None) -> None:
    _set_lock(_descriptors[database], fcntl.F_UNLCK)


def _set_lock(descriptor: int, kind: int) -> None:
    lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, _SHARED_FIRST, _SHARED_SIZE, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, lock)


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Switch the file to write-ahead logging; SQLite keeps that in the file.

    Where several processes do this at once on a new file SQLite reports a lock without
    waiting for it, so we wait.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return
