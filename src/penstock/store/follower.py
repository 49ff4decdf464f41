"""Followers: what an enforcement point knows of the definitions, and for how long.

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

        open feed ──▶ look: changed()? ──yes──▶ read what is new ──▶ tell subscribers
            ▲              ▲    │no                                        │
            │              │    ▼                                          ▼
        pause, grow ◀─┐    └─ sleep ◀──────────── renew the lease ◀────────┘
                      └── any error, from any step
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError, UsageError
from penstock.store.database import Database
from penstock.store.definitions.documents import Snapshot, Update, describe_age, load_current
from penstock.store.feed import Bell, Feed, open_feed
from penstock.store.sqlite_file import FileReplacedError
from penstock.telemetry import get_logger, safe_text
from penstock.telemetry.health import Figures

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
    """A snapshot, when the store last confirmed it, and whether the lease goes by that."""

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
