"""The database under the store: SQLite or PostgreSQL behind one small interface.

Rules that hold here:
- Writers of one area come one after another, and a write is durable when `write()` has
  ended: SQLite runs with WAL and `synchronous=FULL`, and after the commit its files are still
  those on disk.
- Readers see one moment of the database, and neither wait for writers nor hold them up.
- What the database cannot do ends as `UnavailableError`, naming the URL without its
  password and the next step. Parameters of statements never appear in an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from penstock.errors import UnavailableError
from penstock.store import migrations
from penstock.store.engines import BEGIN_WRITE, Address, create_engine
from penstock.store.sqlite_file import FileConnection

# The first half of every advisory lock we take; the second half names the area.
_LOCK_CLASS = 0x50454E53
# For fewer rows the round trips of COPY cost more than it saves.
_COPY_FROM = 8
# These say that we are wrong, not that the database is out of reach.
_OUR_MISTAKES = (DataError, IntegrityError, NotSupportedError, ProgrammingError)


class Database:
    """An open database whose tables have the version of this code.

    Threads may share it. After a fork the child opens its own.
    """

    def __init__(self, address: Address, engine: Engine) -> None:
        self.address = address
        self.engine = engine
        self.is_postgresql = address.path is None
        """Whether this is PostgreSQL; otherwise it is SQLite."""
        self._writing = engine.execution_options(**{BEGIN_WRITE: True})
        self._reading = engine
        if self.is_postgresql:
            self._reading = engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the database at this URL; make or upgrade its tables where needed."""
        address = Address.parse(url)
        database = cls(address, create_engine(address))
        try:
            with database.read() as connection:
                current = migrations.is_current(connection, address.shown)
            if not current:
                with database.write("upgrade") as connection:
                    # Another process may have done it while we waited for the lock.
                    if not migrations.is_current(connection, address.shown):
                        migrations.upgrade(connection)
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def write(self, area: str = "store") -> Iterator[Connection]:
        """Open a transaction that writes; it is committed at the end, or undone by an error.

        Writers of one `area` come one after another; on SQLite all writers do.
        """
        committing = False
        try:
            with self._writing.connect() as connection:
                with connection.begin():
                    lock_area(connection, area)
                    yield connection
                    committing = True
                self._confirm(connection)
        except (DBAPIError, PoolTimeoutError) as error:
            if isinstance(error, _OUR_MISTAKES):
                raise
            raise self.unavailable(error, committing=committing) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that reads one moment of the database."""
        try:
            with self._reading.begin() as connection:
                yield connection
        except (DBAPIError, PoolTimeoutError) as error:
            if isinstance(error, _OUR_MISTAKES):
                raise
            raise self.unavailable(error) from error

    def _confirm(self, connection: Connection) -> None:
        """Make sure that what was committed is in the files that others read."""
        raw = connection.connection.driver_connection
        if isinstance(raw, FileConnection) and not raw.is_current():
            raise UnavailableError(
                f"the file of {self.address.shown} or its log was replaced while a change was being"
                " committed, so it may or may not be stored",
                fix="look at the history before you repeat the change",
            )

    def unavailable(self, error: SQLAlchemyError, *, committing: bool = False) -> UnavailableError:
        """Say in our words that the database failed."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        if committing:
            return UnavailableError(
                f"the database {self.address.shown} failed while a change was being committed,"
                f" so it may or may not be stored: {reason}",
                fix="look at the history before you repeat the change",
            )
        return UnavailableError(
            f"the database {self.address.shown} is not available: {reason}",
            fix=self.address.remedy,
        )

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def insert_rows(connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that all have the same columns, within a transaction of `Database.write`.

    On PostgreSQL by COPY, which takes a fifth of the time of as many INSERTs.
    """
    if not rows:
        return
    if connection.dialect.name != "postgresql" or len(rows) < _COPY_FROM:
        connection.execute(target.insert(), rows)
        return
    names = list(rows[0])
    writers = [target.c[name].type.bind_processor(connection.dialect) for name in names]
    statement = f"COPY {target.name} ({', '.join(names)}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(
                    [
                        row[name] if write is None else write(row[name])
                        for name, write in zip(names, writers, strict=True)
                    ]
                )
    except connection.dialect.loaded_dbapi.OperationalError as error:
        # SQLAlchemy knows nothing of COPY, so its errors are put in the form of others.
        raise OperationalError(statement, None, error) from error


def lock_area(connection: Connection, area: str) -> None:
    """Wait until no other transaction holds an area; hold it to the end of this one.

    On SQLite, who writes holds them all. Whoever needs two areas takes "definitions" before any
    other, so that no two transactions wait for each other.
    """
    if connection.dialect.name == "postgresql":
        key = zlib.crc32(area.encode()) - 2**31
        connection.execute(
            sa.select(sa.func.pg_advisory_xact_lock(sa.cast(_LOCK_CLASS, sa.Integer), key))
        )
