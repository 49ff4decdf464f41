from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from penstock.errors import UnavailableError
from penstock.store import upgrade
from penstock.store.database import Database
from penstock.store.sessions import (
    NEVER,
    Begin,
    Forget,
    Keep,
    Leave,
    Return,
    Sessions,
    StoredSession,
    StoredSubscription,
    digest,
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


ONE = StoredSubscription("a/#", 1, "billing", 1, 7)
TWO = StoredSubscription("b", 2, None, 2, 0)


def test_a_session_is_kept_with_its_subscriptions(database: Database) -> None:
    sessions = Sessions(database)
    name = "c" * 65_000  # longer than any index takes
    sessions.apply([Begin(name, "alice", "h"), Keep(name, "h", (ONE, TWO), (), 2)])
    assert sessions.load(name) == StoredSession("alice", 2, (ONE, TWO))
    changed = StoredSubscription("b", 2, "ads", 1, 0)
    sessions.apply([Keep(name, "h", (changed,), ("a/#", "never"), 3)])
    assert sessions.load(name) == StoredSession("alice", 3, (changed,))
    assert sessions.owner(name) == "alice"
    assert sessions.load("other") is None
    assert sessions.owner("other") is None


def test_a_session_that_begins_anew_forgets_the_old_one(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply(
        [Begin("c", "alice", "h"), Keep("c", "h", (ONE,), (), 1), Begin("c", "bob", "h")]
    )
    assert sessions.load("c") == StoredSession("bob", 0, ())


def test_sessions_end_in_their_time(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock=clock)
    for name in ("now", "later", "never", "back"):
        sessions.apply([Begin(name, "alice", "h"), Keep(name, "h", (ONE,), (), 1)])
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
    sessions.apply([Return("back", "i")])
    clock.now += timedelta(seconds=61)
    assert sessions.load("later") is None
    assert sessions.owner("later") is None
    assert sessions.sweep() == 1
    assert sessions.load("never") is not None
    assert sessions.load("back") is not None


def test_changes_are_made_together_or_not_at_all(database: Database) -> None:
    sessions = Sessions(database)
    with pytest.raises(UnavailableError):
        sessions.apply([Begin("c", "alice", "h"), Keep("nobody", "h", (ONE,), (), 1)])
    assert sessions.load("c") is None


def test_who_held_a_session_before_comes_too_late(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("c", "alice", "old"), Keep("c", "old", (ONE,), (), 1)])
    sessions.apply([Return("c", "new"), Leave("c", "old", 0), Leave("c", "old", 1)])
    assert sessions.load("c") == StoredSession("alice", 1, (ONE,))
    with pytest.raises(UnavailableError, match="taken over"):
        sessions.apply([Keep("c", "old", (TWO,), (), 2)])
    sessions.apply([Keep("c", "new", (TWO,), (), 2)])


def test_a_session_can_be_forgotten_whoever_holds_it(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("c", "alice", "h"), Keep("c", "h", (ONE,), (), 1), Begin("d", "b", "h")])
    sessions.apply([Forget("c"), Forget("never there")])
    assert sessions.load("c") is None
    assert sessions.owner("d") == "b"


def test_sessions_from_before_they_had_holders_can_be_taken_up(sqlite_url: str) -> None:
    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(upgrade.MIGRATIONS))
        config.attributes.update(connection=connection, version_table=upgrade.VERSION_TABLE)
        command.upgrade(config, "0003")
        row = {"client": digest("c"), "principal": "alice", "last_number": 3}
        columns: list[sa.ColumnClause[object]] = [sa.column(name) for name in row]
        connection.execute(sa.insert(sa.table("sessions", *columns)).values(row))
    engine.dispose()
    with Database.open(sqlite_url) as database:
        sessions = Sessions(database)
        assert sessions.load("c") == StoredSession("alice", 3, ())
        sessions.apply([Return("c", "h"), Keep("c", "h", (ONE,), (), 4)])
        assert sessions.load("c") == StoredSession("alice", 4, (ONE,))
