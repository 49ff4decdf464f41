from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.errors import UnavailableError
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
