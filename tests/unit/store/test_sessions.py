from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from penstock.store.database import Database
from penstock.store.sessions import (
    NEVER,
    Begin,
    Keep,
    Leave,
    Return,
    Sessions,
    StoredSession,
    StoredSubscription,
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
    sessions.apply([Begin(name, "alice"), Keep(name, (ONE, TWO), (), 2)])
    assert sessions.load(name) == StoredSession("alice", 2, (ONE, TWO))
    changed = StoredSubscription("b", 2, "ads", 1, 0)
    sessions.apply([Keep(name, (changed,), ("a/#", "never"), 3)])
    assert sessions.load(name) == StoredSession("alice", 3, (changed,))
    assert sessions.owner(name) == "alice"
    assert sessions.load("other") is None
    assert sessions.owner("other") is None


def test_a_session_that_begins_anew_forgets_the_old_one(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("c", "alice"), Keep("c", (ONE,), (), 1), Begin("c", "bob")])
    assert sessions.load("c") == StoredSession("bob", 0, ())


def test_sessions_end_in_their_time(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock=clock)
    for name in ("now", "later", "never", "back"):
        sessions.apply([Begin(name, "alice"), Keep(name, (ONE,), (), 1)])
    sessions.apply([Leave("now", 0), Leave("later", 60), Leave("never", NEVER), Leave("back", 60)])
    assert sessions.load("now") is None
    assert sessions.load("later") is not None
    sessions.apply([Return("back")])
    clock.now += timedelta(seconds=61)
    assert sessions.load("later") is None
    assert sessions.owner("later") is None
    assert sessions.sweep() == 1
    assert sessions.load("never") is not None
    assert sessions.load("back") is not None


def test_changes_are_made_together_or_not_at_all(database: Database) -> None:
    sessions = Sessions(database)
    with pytest.raises(IntegrityError):
        sessions.apply([Begin("c", "alice"), Keep("nobody", (ONE,), (), 1)])
    assert sessions.load("c") is None
