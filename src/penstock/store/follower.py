"""Followers: what an enforcement point knows of the definitions, and for how long.

    open feed ──▶ look: changed()? ──yes──▶ read what is new ──▶ tell subscribers
        ▲              ▲    │no                                        │
        │              │    ▼                                          ▼
    pause, grow ◀─┐    └─ sleep ◀──────────── renew the lease ◀────────┘
                  └── any error, from any step

Rules that hold here:
- A follower counts as informed from the moment *before* it asked the database, so what
  `current()` returns holds every change that was committed a lease ago or earlier.
- Where the lease ran out, `current()` raises `StaleError`: who cannot know denies. So it does at
  once where the files of the store are no longer those that were looked at, until they have been
  opened anew.
- A subscriber that fails to take an update in stops the lease from being renewed; the
  update is offered again until all have taken it. Taking one twice must do no harm.
- A companion looks first, under the same lease: what it knows is as current as the definitions.
- Nothing is missed while the database is away: after it is back the follower catches up
  by epoch, or loads all anew if the database was restored to another history.
- A feed only says when to look; what changed is always read from the tables. A notice
  that is lost or late costs time, never truth.
- `changed()` is false only where it is proven that nothing was committed since the last
  call. PostgreSQL gives no such proof by being silent, SQLite does by `data_version`, as long
  as the files on disk are those of the connection.
- A feed has a connection of its own; a broken feed is closed and a new one opened.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError, UsageError
from penstock.store.database import Address, Database
from penstock.store.definitions.documents import Snapshot, Update, describe_age, load_current
from penstock.store.schema import CHANNEL
from penstock.store.sqlite_file import FileConnection, FileReplacedError
from penstock.telemetry import get_logger, safe_text
from penstock.telemetry.health import Figures


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


LEASE = 5.0
SQLITE_POLL = 0.02
SHORTEST_LEASE = 0.1
# PostgreSQL is asked this often per lease, so that a lost notice or two end no lease.
_LOOKS_PER_LEASE = 5
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

Subscriber = Callable[[Update], None]
_log = get_logger("store")


@safe_text
class StaleError(UnavailableError):
    """The current definitions are not known: the lease ran out."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a follower is doing, for health checks and metrics."""

    epoch: int | None
    age: float | None
    """Seconds since the store, in the files that are on disk, confirmed this epoch."""
    is_fresh: bool
    trouble: str | None

    def details(self) -> Figures:
        """Return the epoch and its age, for those who ask whether a process is ready."""
        return describe_age(self.epoch, self.age)


class _Held(NamedTuple):
    """A snapshot, when the store last confirmed it, and whether the lease relies on that."""

    snapshot: Snapshot
    confirmed: float
    leased: bool = True


class Companion(Protocol):
    """Follows something else in the same database, under the same lease."""

    def look(self, connection: Connection) -> None:
        """Take over what was committed before the call; raise where that cannot be done."""


class Follower:
    """Follows the definitions from a thread of its own; use it as a context manager."""

    def __init__(
        self,
        database: Database,
        *,
        lease: float = LEASE,
        poll: float = SQLITE_POLL,
        clock: Callable[[], float] = boot_clock,
        companion: Companion | None = None,
    ) -> None:
        if lease < SHORTEST_LEASE:
            raise UsageError(
                f"a lease of {lease} s is too short to be renewed in time",
                fix=f"choose at least {SHORTEST_LEASE} s",
            )
        self.lease = lease
        self._companion = companion
        self._database = database
        self._pause = lease / _LOOKS_PER_LEASE if database.is_postgresql else poll
        self._clock = clock
        self._held: _Held | None = None  # replaced as one, so read unlocked
        self._news = threading.Condition()
        self._delivery = threading.RLock()
        self._subscribers: list[Subscriber] = []
        self._lease_listeners: list[Callable[[], object]] = []
        self._trouble: str | None = None
        self._bell = Bell()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-follower", daemon=True)

    def current(self) -> Snapshot:
        """Return the current set; raise `StaleError` if it is not known to be current."""
        held = self._held
        if held is not None and held.leased and self._clock() - held.confirmed <= self.lease:
            return held.snapshot
        raise self._stale()

    def wait_for(self, epoch: int, timeout: float) -> Snapshot:
        """Wait until this epoch or a later one is known."""
        with self._news:
            self._news.wait_for(lambda: self._held and self._held.snapshot.epoch >= epoch, timeout)
        snapshot = self.current()
        if snapshot.epoch < epoch:
            raise StaleError(f"epoch {epoch} did not arrive within {timeout} s")
        return snapshot

    def status(self) -> Status:
        """Say how the follower is doing."""
        held = self._held
        if held is None:
            return Status(None, None, is_fresh=False, trouble=self._trouble)
        age = self._clock() - held.confirmed
        fresh = held.leased and age <= self.lease
        return Status(held.snapshot.epoch, age, is_fresh=fresh, trouble=self._trouble)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every update, at once with the whole set if there is one.

        It is called from the follower's thread. The result ends the subscription.
        """
        with self._delivery:
            if self._held is not None:
                snapshot = self._held.snapshot
                subscriber(Update(snapshot, frozenset(snapshot.documents)))
            self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            with self._delivery, contextlib.suppress(ValueError):
                self._subscribers.remove(subscriber)

        return unsubscribe

    def call_when_lease_changes(self, listener: Callable[[], object]) -> None:
        """Call `listener` where the store is another than before, and where it is followed again.

        The lease is over at once then, and a new one begins. It is called from the follower's
        thread. A lease that runs out tells nobody: who holds to it knows when.
        """
        self._lease_listeners.append(listener)

    def start(self) -> None:
        """Start following; a follower is started once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; what is known stays known until the lease runs out."""
        self._stopping.set()
        self._bell.ring()
        self._thread.join()
        self._bell.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                with open_feed(self._database, self._bell) as feed:
                    while not self._stopping.is_set():
                        self._look(feed)
                        pause = _FIRST_PAUSE
                        feed.sleep(self._pause)
            except Exception as error:  # noqa: BLE001 (whatever it is, the lease runs out)
                if isinstance(error, FileReplacedError) and self._held is not None:
                    self._held = self._held._replace(leased=False)
                    self._tell_lease()
                if self._trouble is None:
                    _log.warning("the definitions cannot be followed", error=error)
                self._trouble = self._describe(error)
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self, feed: Feed) -> None:
        if self._held is None and self._companion is not None:
            # All there is, which may take longer than a lease; what is new by then takes little.
            self._companion.look(feed.connection)
        asked = self._clock()
        held = self._held and self._held.snapshot
        regained = self._held is not None and not self._held.leased
        # The feed is asked first of all: it also tells whether the store is the one on disk.
        if feed.changed() or held is None:
            if self._companion is not None:
                self._companion.look(feed.connection)
            with feed.connection.begin():
                update = load_current(feed.connection, held)
            self._deliver(update, asked, is_news=update.snapshot is not held)
            held = update.snapshot
        else:
            self._held = _Held(held, asked)
        if regained:
            self._tell_lease()
        if self._trouble is not None:
            self._trouble = None
            _log.info("the definitions are followed again", epoch=held.epoch)

    def _tell_lease(self) -> None:
        for listener in self._lease_listeners:
            listener()

    def _deliver(self, update: Update, asked: float, *, is_news: bool) -> None:
        with self._delivery:
            if is_news:
                for subscriber in list(self._subscribers):
                    subscriber(update)
            with self._news:
                self._held = _Held(update.snapshot, asked)
                self._news.notify_all()

    def _stale(self) -> StaleError:
        status = self.status()
        if status.age is None:
            what = "the definitions have not been loaded yet"
        elif status.age <= self.lease:
            what = f"whether epoch {status.epoch} of the definitions is current cannot be known"
        else:
            what = (
                f"the definitions of epoch {status.epoch} were last known to be current"
                f" {status.age:.1f} s ago, longer than the lease of {self.lease:g} s"
            )
        because = f" ({status.trouble})" if status.trouble else ""
        return StaleError(what + because, fix=self._database.address.remedy)

    def _describe(self, error: Exception) -> str:
        if isinstance(error, PenstockError):
            return error.message
        if isinstance(error, SQLAlchemyError):
            return self._database.unavailable(error).message
        return f"unexpected {type(error).__name__}"  # a subscriber's text may hold anything
