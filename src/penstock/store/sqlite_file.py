"""The file of an embedded store: how it is made, opened, watched and closed.

SQLite keeps processes apart by POSIX record locks on the database file. The kernel drops all
locks that a process has on a file as soon as the process closes *any* descriptor of it. Another
process then takes itself for the last one and deletes the write-ahead log under those who still
use it: they read what is old, and what they write is lost.

Rules that hold here:
- Nothing but SQLite opens the database, its log or its index. A new file is made by `mknod`,
  which opens nothing; a connection never makes one.
- A connection knows its files, the database, the log and its index, by their inodes. One whose
  files are no longer those on disk is not used again.
- All connections of a process to one database share one index of the log, the deleted one if it
  comes to that. So where the log was replaced, all connections to the old one are closed before a
  new one is opened. Until then there is no access.
- The last connection to a database copies its log into it and deletes the log by its name. Where
  that name means the log of others by now, another lock keeps it from that: when it is closed,
  collected as garbage, or still open at the end of the process.
- A log that belongs to another database is never read as that of the new one.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
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
from penstock.telemetry import get_logger, safe_text

MODE = 0o600
_PAUSE = 0.01
_LOCK_SECONDS = 1.0
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
    wal_index: Inode | None

    @classmethod
    def on_disk(cls, path: Path | str, real: str) -> Files:
        """Return those that a name, and the file that it leads to, mean now."""
        found: list[Inode | None] = []
        for name in (path, f"{real}-wal", f"{real}-shm"):
            try:
                status = os.stat(name)  # noqa: PTH116 (a third of the cost of Path.stat)
            except FileNotFoundError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino))
        return cls(*found)


def create_file(path: Path) -> None:
    """Make an empty database that its owner alone may read, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # SQLite would let everybody read a new file; its companions take its mode over.
        os.mknod(path.resolve(), MODE)
    except FileExistsError:
        return


class LeftLog(NamedTuple):
    """A log beside a database that is not its own; the descriptor keeps its inode from reuse."""

    database: Inode | None
    log: Inode | None
    descriptor: int


class FileConnection(sqlite3.Connection):
    """A connection that knows the files it was opened on."""

    path: Path
    real: str
    """The file itself, after which the log and its index are named; `path` may be a link."""
    files: Files | None = None
    """None until it is set up, and when it is closed."""
    in_use = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.guard = threading.Lock()

    def is_current(self) -> bool:
        """Say whether its files are still those on disk."""
        return self.files == Files.on_disk(self.path, self.real)

    def take(self) -> bool:
        """Begin to use it; false if it must not be used again."""
        with self.guard:
            self.in_use = self.files is not None and self.is_current()
            return self.in_use

    def close(self) -> None:
        """Close it; a log that is not its own is left as it is."""
        with _gate:
            files = self.files
            if files is None:
                super().close()
            elif files[1:] != Files.on_disk(self.path, self.real)[1:]:
                _log.error("the log of the store was moved away or replaced while it was in use")
                _keep_open(files.database)
                super().close()
                self.files = None
                _release(files.database)
            else:
                if files.database != Files.on_disk(self.real, self.real).database:
                    _remember_log(self.real, files.database)
                super().close()
                self.files = None
            _open.discard(self)

    def __del__(self) -> None:
        """Leave a log alone that is not its own; SQLite closes what nobody has closed."""
        # No lock is taken: this may run in the midst of anything.
        with contextlib.suppress(Exception):
            files = self.files
            if files is not None and files[1:] != Files.on_disk(self.path, self.real)[1:]:
                _keep_open(files.database)


_gate = threading.RLock()
_open: WeakSet[FileConnection] = WeakSet()
# Descriptors of databases whose log was lost. As long as there are connections to a database its
# descriptor stays open: closing it would drop their locks.
_descriptors: dict[Inode | None, int] = {}
# Logs that stayed where a database was replaced, by the name of the database.
_left_logs: dict[str, LeftLog] = {}


@atexit.register
def _leave_lost_logs() -> None:
    """Keep what is still open from deleting logs that are not its own when Python ends."""
    for connection in list(_open):
        connection.__del__()


def connect(path: Path, *, patience: float, **options: Any) -> FileConnection:
    """Open a connection to an existing database, and set it up."""
    path = path.absolute()
    real = str(path.resolve())
    with _gate:
        before = Files.on_disk(path, real)
        _close_stale(path, before)
        _refuse_left_log(real, before)
        made: FileConnection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, factory=FileConnection, **options
        )
        made.path, made.real = path, real
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
    found = Files.on_disk(path := made.path, made.real)
    # Its index is the one that others of this process opened before, whatever is on disk now.
    shared = [other.files for other in _open if other.files and other.files[0] == found.database]
    if found.database != before.database or any(files != found for files in shared):
        raise _replaced(path)
    made.files = found


def _close_stale(path: Path, now: Files) -> None:
    """Close connections that share the log with a new one wrongly; raise if one is in use.

    They have an older log of the same database, or this log for a database that was replaced.
    """
    for other in list(_open):
        files = other.files
        if files is None or files == now:
            continue
        if files.database == now.database or (now.log is not None and files.log == now.log):
            with other.guard:
                if other.in_use:
                    raise _replaced(path)
                other.close()


def _refuse_left_log(real: str, now: Files) -> None:
    """Raise where SQLite would read the log of a database that was replaced as the new one's."""
    left = _left_logs.get(real)
    if left is None or now.database is None:
        return
    # SQLite deletes a log only together with its own database, so somebody else has to.
    if left.log == now.log and left.database != now.database and os.fstat(left.descriptor).st_size:
        raise FileReplacedError(
            f"the file {real} was replaced, and {real}-wal is still the log of the old one",
            fix=f"stop all that use the store, remove {real}-wal and {real}-shm, and start again",
        )
    os.close(_left_logs.pop(real).descriptor)


def _replaced(path: Path) -> FileReplacedError:
    return FileReplacedError(
        f"the file {path} or its log was moved away or replaced while it was in use",
        fix="let no other program change the files of the store while Penstock runs",
    )


def _remember_log(real: str, database: Inode | None) -> None:
    """Remember that the log there belongs to a database that was replaced."""
    # SQLite has no locks on a log, so that a descriptor of it may be closed.
    descriptor = os.open(f"{real}-wal", os.O_RDONLY)
    status = os.fstat(descriptor)
    before = _left_logs.pop(real, None)
    if before is not None:
        os.close(before.descriptor)
    _left_logs[real] = LeftLog(database, (status.st_dev, status.st_ino), descriptor)


def _keep_open(database: Inode | None) -> None:
    """Hold the lock that an open connection of another process would hold.

    It belongs to a descriptor, not to the process, so it stands against SQLite's own.
    """
    if database not in _descriptors:
        _descriptors[database] = _open_again(database)
    _set_lock(_descriptors[database], fcntl.F_RDLCK)


def _open_again(database: Inode | None) -> int:
    """Open a file that this process has open already; it may have no name any more."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = link.stat()
            if (status.st_dev, status.st_ino) == database:
                return os.open(link, os.O_RDONLY)
    raise FileNotFoundError(f"no descriptor of {database}")


def _release(database: Inode | None) -> None:
    if any(other.files and other.files.database == database for other in _open):
        _set_lock(_descriptors[database], fcntl.F_UNLCK)
    else:
        os.close(_descriptors.pop(database))


def _set_lock(descriptor: int, kind: int) -> None:
    lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, _SHARED_FIRST, _SHARED_SIZE, 0)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES} or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return


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
