"""Feeds: how a process hears that the database may have changed.

Rules that hold here:
- A feed only says when to look; what changed is always read from the tables. A notice
  that is lost or late costs time, never truth.
- `changed()` is false only where it is proven that nothing was committed since the last
  call. PostgreSQL gives no such proof by being silent, SQLite does by `data_version`, as long
  as the files on disk are those of the connection.
- A feed has a connection of its own; a broken feed is closed and a new one opened.
"""

from __future__ import annotations

import selectors
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection

from penstock.errors import UnavailableError
from penstock.store.database import Address, Database
from penstock.store.schema import CHANNEL
from penstock.store.sqlite_file import FileConnection, FileReplacedError


class Bell:
    """Wakes a sleeping feed from another thread."""

    def __init__(self) -> None:
        self._outside, self.inside = socket.socketpair()

    def ring(self) -> None:
        """Wake the feed, now or when it next goes to sleep; it will not sleep again."""
        self._outside.send(b"!")

    def close(self) -> None:
        """Give back the sockets."""
        self._outside.close()
        self.inside.close()


class Feed(Protocol):
    """A connection to the database, and sleep that ends when there may be news."""

    connection: Connection

    def changed(self) -> bool:
        """Say whether the tables must be read to know the current epoch."""

    def sleep(self, seconds: float) -> None:
        """Sleep until there may be news, the bell rings, or the time is over."""


@contextmanager
def open_feed(database: Database, bell: Bell) -> Iterator[Feed]:
    """Open the feed that suits the database."""
    with database.engine.connect() as connection, selectors.DefaultSelector() as selector:
        selector.register(bell.inside, selectors.EVENT_READ)
        address = database.address
        if address.path is None:
            yield PostgresFeed(address, connection, selector)
        else:
            yield SqliteFeed(address, connection, selector)


class SqliteFeed:
    """Looks at a counter that SQLite raises with every commit of any other connection."""

    def __init__(
        self, address: Address, connection: Connection, selector: selectors.BaseSelector
    ) -> None:
        self.connection = connection
        self._address = address
        self._selector = selector
        raw = connection.connection.driver_connection
        if not isinstance(raw, FileConnection):
            raise TypeError("a feed of SQLite needs a connection that knows its files")
        self._raw = raw
        self._version: int | None = None

    def changed(self) -> bool:
        """Compare the counter, after a look whether these are still the files on disk."""
        # In this order: what was committed before the look is in the files that are looked at.
        if not self._raw.is_current():
            raise FileReplacedError(
                f"the file of {self._address.shown} or its log was moved away or replaced",
                fix=self._address.remedy,
            )
        try:
            version = self._raw.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise UnavailableError(
                f"cannot read {self._address.shown}: {error}", fix=self._address.remedy
            ) from error
        known, self._version = self._version, version
        return bool(version != known)

    def sleep(self, seconds: float) -> None:
        """Sleep until the bell rings or the time is over."""
        self._selector.select(seconds)


class PostgresFeed:
    """Listens to the notices that PostgreSQL sends with the commit of a change."""

    def __init__(
        self, address: Address, connection: Connection, selector: selectors.BaseSelector
    ) -> None:
        driver: Any = connection.connection.driver_connection
        # Sets are read by epoch and need no transaction to be whole: two round trips less.
        self.connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()  # it listens from now on, so it must not go back into the pool
        self._address = address
        self._selector = selector
        self._notified = False
        driver.add_notify_handler(self._hear)
        self._pgconn = driver.pgconn
        with connection.begin():
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        selector.register(driver.fileno(), selectors.EVENT_READ)

    def changed(self) -> bool:
        """Forget the notices that came before the query that is to follow."""
        self._take_notices()
        return True

    def sleep(self, seconds: float) -> None:
        """Sleep, unless a notice came along with the answer to the last query."""
        if not self._take_notices():
            self._selector.select(seconds)

    def _hear(self, notice: object) -> None:
        del notice
        self._notified = True

    def _take_notices(self) -> bool:
        import psycopg  # noqa: PLC0415 (not installed where only SQLite is used)

        try:
            self._pgconn.consume_input()
            while self._pgconn.notifies() is not None:
                self._notified = True
        except psycopg.Error as error:
            raise UnavailableError(
                f"the connection to {self._address.shown} broke", fix=self._address.remedy
            ) from error
        notified, self._notified = self._notified, False
        return notified
