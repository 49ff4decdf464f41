"""The database under the store: SQLite or PostgreSQL behind one small interface.

Rules that hold here:
- Writers of one area come one after another, and a write is durable when `write()` has
  ended: SQLite runs with WAL and `synchronous=FULL`, and after the commit its files are still
  those on disk.
- Readers see one moment of the database, and neither wait for writers nor hold them up.
- What the database cannot do ends as `UnavailableError`, naming the URL without its
  password and the next step: `Address.shown` leaves password and query part out. Parameters of
  statements never appear in an error.
- SQLite is a file, because other processes follow it. A connection whose files are no longer
  those on disk is not used again; see `sqlite_file`.
- No call waits for ever: locks, connects and dead peers have time limits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from penstock.errors import UnavailableError, UsageError, quote
from penstock.store import migrations
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
