"""Addresses of databases, and engines set up the way the store needs them.

Rules that hold here:
- A password is never shown: `Address.shown` leaves it out together with the query part.
- SQLite is a file, because other processes follow it. A connection whose file was moved
  away or replaced is not used again: what it would write were lost.
- No call waits for ever: locks, connects and dead peers have time limits.
"""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from penstock.errors import UnavailableError, UsageError, quote

BEGIN_WRITE = "penstock_begin_write"
LOCK_SECONDS = 10.0
CONNECT_SECONDS = 5
_EXAMPLES = "write sqlite:///folder/penstock.db or postgresql://user@host/database"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is, how to show that, and what to do if it is not there."""

    url: URL
    shown: str
    remedy: str

    @property
    def path(self) -> Path | None:
        """Return the file, if it is SQLite."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URL; raise `UsageError` if it names no database we can use."""
        try:
            url = make_url(text)
        except ArgumentError:
            # The text may hold a password, so only its beginning is quoted.
            scheme, colon, _ = text.partition("://")
            begins = f" (it begins with {quote(scheme)})" if colon else ""
            raise UsageError(
                f"the address of the database is not a URL{begins}", fix=_EXAMPLES
            ) from None
        if url.drivername in {"sqlite", "sqlite+pysqlite"}:
            return cls._sqlite(url)
        if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
            return cls._postgresql(url)
        raise UsageError(f"cannot use a database of type {quote(url.drivername)}", fix=_EXAMPLES)

    @classmethod
    def _sqlite(cls, url: URL) -> Self:
        if url.database in {None, "", ":memory:"}:
            raise UsageError("a SQLite store needs a file that other processes see", fix=_EXAMPLES)
        return cls(
            url=url.set(drivername="sqlite+pysqlite"),
            shown=f"sqlite:///{url.database}",
            remedy="check that the file and its folder may be read and written, that the disk has"
            " room, and that no other program keeps the file locked",
        )

    @classmethod
    def _postgresql(cls, url: URL) -> Self:
        if find_spec("psycopg") is None:
            raise UnavailableError(
                "the PostgreSQL driver is not installed", fix="pip install 'penstock[postgres]'"
            )
        url = url.set(drivername="postgresql+psycopg")
        shown = url.set(drivername="postgresql", password=None, query={})
        return cls(
            url=url,
            shown=shown.render_as_string(),
            remedy="check that PostgreSQL runs there, that the database exists, and that the user"
            " may log in (store.password names the place of its password)",
        )


def create_engine(address: Address) -> Engine:
    """Make the engine; the first connection is opened when it is first used."""
    if address.path is None:
        return _create_postgresql(address)
    return _create_sqlite(address, address.path)


def _create_postgresql(address: Address) -> Engine:
    engine = sa.create_engine(
        address.url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_timeout=LOCK_SECONDS,
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "penstock",
            # A peer that vanished without a word is noticed within seconds, not hours.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        }
        | dict(address.url.query),
    )

    @event.listens_for(engine, "connect")
    def set_limits(connection: Any, record: object) -> None:
        del record
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {int(LOCK_SECONDS * 1000)}")
        # A writer that was stopped in the middle must not hold its lock for ever.
        connection.execute("SET idle_in_transaction_session_timeout = 60000")
        connection.autocommit = False

    return engine


def _create_sqlite(address: Address, path: Path) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite would let everybody read a new file; its companions take its mode over.
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))
    except OSError as error:
        raise UnavailableError(
            f"cannot open {address.shown}: {error.strerror}", fix=address.remedy
        ) from error
    engine = sa.create_engine(
        address.url,
        pool_timeout=LOCK_SECONDS,
        hide_parameters=True,
        connect_args={"timeout": LOCK_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: Any) -> None:
        # Python's own handling of transactions is switched off; see `begin` below.
        connection.isolation_level = None
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        record.info["file"] = file_identity(path)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes the lock at once: asking for it after a read could only fail.
        writes = connection.get_execution_options().get(BEGIN_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    @event.listens_for(engine, "checkout")
    def check_file(connection: object, record: Any, proxy: object) -> None:
        del connection, proxy
        if record.info["file"] != file_identity(path):
            raise DisconnectionError("the database file was moved away or replaced")

    return engine


def file_identity(path: Path) -> tuple[int, int] | None:
    """Tell one file from another that has the same name; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a third of the cost of Path.stat on a hot path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _use_wal(connection: Any) -> None:
    """Switch the file to write-ahead logging; SQLite keeps that in the file.

    Where several processes do this at once on a new file SQLite reports a lock without
    waiting for it, so we wait.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
