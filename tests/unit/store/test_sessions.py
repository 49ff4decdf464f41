from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from penstock.errors import UnavailableError
from penstock.store import migrations
from penstock.store.database import Database
from penstock.store.session_tables import SessionQuotaError, SessionQuotas, digest, sessions_table
from penstock.store.sessions import (
    NEVER,
    AwaySession,
    Begin,
    Disown,
    Forget,
    Keep,
    Leave,
    Owner,
    Return,
    Sessions,
    StoredSession,
    StoredSubscription,
    TakenError,
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


ONE = StoredSubscription("a/#", 1, "billing", 1, 7)
TWO = StoredSubscription("b", 2, None, 2, 0)


def take_up(sessions: Sessions, client: str, holder: str) -> Return:
    """Make the change that takes a session up as it is now."""
    seen = sessions.load(client)
    assert seen is not None
    return Return(client, holder, seen)


def test_a_session_is_kept_with_its_subscriptions(database: Database) -> None:
    sessions = Sessions(database)
    name = "c" * 65_000  # longer than any index takes
    sessions.apply([Begin(name, "alice", "h", None), Keep(name, "h", (ONE, TWO), (), 2)])
    assert sessions.load(name) == StoredSession("alice", "h", 2, (ONE, TWO))
    changed = StoredSubscription("b", 2, "ads", 1, 0)
    sessions.apply([Keep(name, "h", (changed,), ("a/#", "never"), 3)])
    assert sessions.load(name) == StoredSession("alice", "h", 3, (changed,))
    assert sessions.owner(name) == Owner("alice", "h")
    assert sessions.load("other") is None
    assert sessions.owner("other") is None


def test_what_is_disowned_is_gone_with_its_subscriptions(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("a", "alice", "h", None), Keep("a", "h", (ONE,), (), 1)])
    sessions.apply([Begin("a2", "alice", "h", None), Begin("b", "bob", "h", None)])
    sessions.apply([Disown(("alice", *(f"other-{it}" for it in range(2_500))))])
    assert [sessions.owner(it) for it in ("a", "a2", "b")] == [None, None, Owner("bob", "h")]
    sessions.apply([Begin("a", "alice", "new", None)])
    assert sessions.load("a") == StoredSession("alice", "new", 0, ())


def test_a_session_that_begins_anew_forgets_the_old_one(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply(
        [Begin("c", "alice", "h", None), Keep("c", "h", (ONE,), (), 1), Begin("c", "bob", "i", "h")]
    )
    assert sessions.load("c") == StoredSession("bob", "i", 0, ())


def test_sessions_end_in_their_time(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock=clock)
    for name in ("now", "later", "never", "back"):
        sessions.apply([Begin(name, "alice", "h", None), Keep(name, "h", (ONE,), (), 1)])
    sessions.apply(
        [
            Leave("now", "h", 0),
            Leave("later", "h", 60),
            Leave("never", "h", NEVER),
            Leave("back", "h", 60),
        ]
    )
    assert sessions.load("now") is None
    assert sessions.load("later") is not None
    sessions.apply([take_up(sessions, "back", "i")])
    clock.now += timedelta(seconds=61)
    assert sessions.load("later") is None
    assert sessions.owner("later") is None
    assert sessions.sweep() == 1
    assert sessions.load("never") is not None
    assert sessions.load("back") is not None


def test_who_has_left_is_known_until_they_come_back(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock=clock)
    sessions.apply([Begin(it, "alice", "h", None, expiry=60) for it in "abcd"])
    assert sessions.away() == []
    sessions.apply(
        [
            Leave("a", "h", 60),
            Leave("b", "h", NEVER),
            Leave("c", "h", 60, will_waits=True),
            Leave("d", "another", 60),
        ]
    )
    assert sorted(sessions.away()) == [AwaySession("a", 60), AwaySession("b", NEVER)]
    clock.now += timedelta(seconds=20)
    sessions.apply([take_up(sessions, "b", "i")])
    assert sessions.away() == [AwaySession("a", 40)]
    clock.now += timedelta(seconds=40)
    assert sessions.away() == []


def test_changes_are_made_together_or_not_at_all(database: Database) -> None:
    sessions = Sessions(database)
    with pytest.raises(UnavailableError):
        sessions.apply([Begin("c", "alice", "h", None), Keep("nobody", "h", (ONE,), (), 1)])
    assert sessions.load("c") is None


def test_who_held_a_session_before_comes_too_late(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("c", "alice", "old", None), Keep("c", "old", (ONE,), (), 1)])
    sessions.apply([take_up(sessions, "c", "new"), Leave("c", "old", 0), Leave("c", "old", 1)])
    assert sessions.load("c") == StoredSession("alice", "new", 1, (ONE,))
    with pytest.raises(UnavailableError, match="taken over"):
        sessions.apply([Keep("c", "old", (TWO,), (), 2)])
    sessions.apply([Keep("c", "new", (TWO,), (), 2)])


def test_a_session_is_forgotten_only_as_it_was_seen(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply(
        [Begin("c", "alice", "h", None), Keep("c", "h", (ONE,), (), 1), Begin("d", "b", "h", None)]
    )
    for change in (Forget("c", "i"), Forget("never there", "h")):
        with pytest.raises(TakenError):
            sessions.apply([change])
    sessions.apply([Forget("c", "h")])
    assert sessions.load("c") is None
    assert sessions.owner("d") == Owner("b", "h")


def test_a_session_is_taken_up_only_as_it_was_seen(database: Database) -> None:
    """Neither another holder nor a late word of the one that was seen goes unnoticed."""
    sessions = Sessions(database)
    sessions.apply([Begin("c", "alice", "h", None)])
    back = take_up(sessions, "c", "i")
    sessions.apply([Keep("c", "h", (ONE,), (), 1)])
    with pytest.raises(TakenError):
        sessions.apply([back])
    sessions.apply([take_up(sessions, "c", "i")])
    for late in (Begin("c", "alice", "j", "h"), Begin("c", "alice", "j", None)):
        with pytest.raises(TakenError):
            sessions.apply([late])
    assert sessions.load("c") == StoredSession("alice", "i", 1, (ONE,))


def test_a_session_that_has_expired_is_nobodys(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock=clock)
    sessions.apply([Begin("c", "alice", "h", None), Leave("c", "h", 60)])
    back = take_up(sessions, "c", "i")
    clock.now += timedelta(seconds=61)
    for late in (back, Begin("c", "alice", "i", "h"), Forget("c", "h")):
        with pytest.raises(TakenError):
            sessions.apply([late])
    sessions.apply([Begin("c", "bob", "i", None)])
    assert sessions.owner("c") == Owner("bob", "i")


def test_sessions_from_before_they_had_holders_can_be_taken_up(sqlite_url: str) -> None:
    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        migrations.upgrade(connection, to="0003")
        row = {"client": digest("c"), "principal": "alice", "last_number": 3}
        columns: list[sa.ColumnClause[object]] = [sa.column(name) for name in row]
        connection.execute(sa.insert(sa.table("sessions", *columns)).values(row))
    engine.dispose()
    with Database.open(sqlite_url) as database:
        sessions = Sessions(database)
        assert sessions.load("c") == StoredSession("alice", "", 3, ())
        sessions.apply([take_up(sessions, "c", "h"), Keep("c", "h", (ONE,), (), 4)])
        assert sessions.load("c") == StoredSession("alice", "h", 4, (ONE,))


def test_of_many_gateways_that_begin_sessions_at_once_as_many_succeed_as_may(
    store_url: str,
) -> None:
    quotas = SessionQuotas(per_user=3)
    outcomes: list[bool] = []

    def begin(number: int) -> None:
        with Database.open(store_url) as database:
            for attempt in range(4):
                change = Begin(f"c{number}-{attempt}", "alice", f"h{number}", None, 60)
                try:
                    Sessions(database, quotas=quotas).apply([change])
                except SessionQuotaError:
                    outcomes.append(False)
                else:
                    outcomes.append(True)

    Database.open(store_url).close()
    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 13 + [True] * 3


def test_addresses_are_stored_hidden(database: Database) -> None:
    sessions = Sessions(database, hide=lambda it: f"hidden {len(it)}")
    sessions.apply([Begin("c", "anonymous", "h", None, 60, "10.0.0.1")])
    with database.read() as connection:
        assert connection.scalar(sa.select(sessions_table.c.address)) == "hidden 8"
