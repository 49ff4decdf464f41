"""Addresses of databases, and engines set up the way the store needs them.

Rules that hold here:
- A password is never shown: `Address.shown` leaves it out together with the query part.
- SQLite is a file, because other processes follow it. A connection whose files are no longer
  those on disk is not used again; see `sqlite_file`.
- No call waits for ever: locks, connects and dead peers have time limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from penstock.errors import UnavailableError, UsageError, quote
from penstock.store.sqlite_file import FileConnection, connect, create_file

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
        create_file(path)
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

    @event.listens_for(engine, "do_connect")
    def open_connection(
        dialect: object, record: object, arguments: list[str], options: dict[str, Any]
    ) -> FileConnection:
        del dialect, record
        return connect(Path(arguments[0]), patience=LOCK_SECONDS, **options)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes the lock at once: asking for it after a read could only fail.
        writes = connection.get_execution_options().get(BEGIN_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    @event.listens_for(engine, "checkout")
    def take(connection: FileConnection, record: object, proxy: object) -> None:
        del record, proxy
        if not connection.take():
            raise DisconnectionError("its files were moved away or replaced")

    @event.listens_for(engine, "checkin")
    def give_back(connection: FileConnection | None, record: object) -> None:
        del record
        if connection is not None:  # there is none where opening it failed
            connection.in_use = False

    return engine
