"""Sessions of the console and its one-time links."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.store.access_tokens import (
    LINK_LIFE,
    MOST_SESSIONS,
    ConsoleSessions,
    sessions_table,
)
from penstock.store.database import Database

IDLE, LONGEST = 600.0, 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> Iterator[ConsoleSessions]:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as database:
        yield ConsoleSessions(database, IDLE, LONGEST, clock=clock)


def test_what_a_browser_shows_is_not_in_the_store(sessions: ConsoleSessions) -> None:
    shown = sessions.open("ada", "p")
    with sessions._database.read() as connection:
        (row,) = connection.execute(sessions_table.select())
    assert shown not in str(row)
    found = sessions.find(shown)
    assert found is not None
    assert (found.user, found.proof) == ("ada", "p")
    assert sessions.find(shown[:-1]) is None
    assert sessions.find(found.digest) is None


def test_a_session_ends_when_it_is_not_used(sessions: ConsoleSessions, clock: Clock) -> None:
    shown = sessions.open("ada", "p")
    for _ in range(3):
        clock.pass_(IDLE - 1)
        assert sessions.find(shown) is not None
    clock.pass_(IDLE)
    assert sessions.find(shown) is None


def test_a_session_ends_however_much_it_is_used(sessions: ConsoleSessions, clock: Clock) -> None:
    shown = sessions.open("ada", "p")
    for _ in range(11):
        clock.pass_(IDLE / 2)
        assert sessions.find(shown) is not None
    clock.pass_(IDLE / 2)
    assert sessions.find(shown) is None


def test_looking_whether_it_holds_does_not_prolong_it(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    found = sessions.find(sessions.open("ada", "p"))
    assert found is not None
    clock.pass_(IDLE - 1)
    assert sessions.holds(found)
    clock.pass_(1)
    assert not sessions.holds(found)


def test_closing_is_at_once(sessions: ConsoleSessions) -> None:
    one, two, other = (sessions.open(user, "p") for user in ("ada", "ada", "eve"))
    found = sessions.find(one)
    assert found is not None
    assert sessions.close_others(found) == 1
    assert sessions.find(two) is None
    sessions.close(found)
    assert sessions.find(one) is None
    assert sessions.find(other) is not None


def test_a_user_has_so_many_and_the_one_that_waited_longest_goes(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    shown = []
    for _ in range(MOST_SESSIONS + 2):
        shown.append(sessions.open("ada", "p"))
        clock.pass_(1)
    assert [sessions.find(it) is not None for it in shown[:3]] == [False, False, True]
    assert len(sessions.of("ada")) == MOST_SESSIONS


def test_a_link_is_good_once_for_an_hour_and_only_the_last(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    first, second = sessions.make_link(), sessions.make_link()
    assert not sessions.use_link(first)
    assert sessions.has_link(second)
    assert sessions.use_link(second)
    assert not sessions.use_link(second)
    late = sessions.make_link()
    clock.pass_(LINK_LIFE.total_seconds())
    assert not sessions.has_link(late)
    assert not sessions.use_link(late)
