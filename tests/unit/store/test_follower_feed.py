from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.follower import Bell, PostgresFeed, open_feed
from penstock.store.schema import CHANNEL, epochs

LONG = 20.0  # a sleep that a passing test never sleeps to its end
count = sa.select(sa.func.count()).select_from(epochs)


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


def write(database: Database) -> None:
    with database.write() as connection:
        connection.execute(epochs.update().values(reason="changed"))


def test_the_bell_ends_a_sleep(database: Database, bell: Bell) -> None:
    with open_feed(database, bell) as feed:
        timer = threading.Timer(0.05, bell.ring)
        timer.start()
        started = time.monotonic()
        feed.sleep(LONG)
        feed.sleep(LONG)
        assert time.monotonic() - started < LONG
        timer.join()


def test_sqlite_proves_that_nothing_changed(sqlite_url: str, bell: Bell) -> None:
    with Database.open(sqlite_url) as database, open_feed(database, bell) as feed:
        assert feed.changed()
        assert not feed.changed()
        write(database)
        assert feed.changed()
        with feed.connection.begin():
            feed.connection.scalar(count)
        assert not feed.changed()


def test_a_change_is_seen_while_another_is_being_written(sqlite_url: str, bell: Bell) -> None:
    with Database.open(sqlite_url) as database, open_feed(database, bell) as feed:
        assert feed.changed()
        with database.write() as connection:
            connection.execute(epochs.update().values(reason="changed"))
            assert not feed.changed()
        assert feed.changed()


def test_a_file_that_was_replaced_ends_the_feed(tmp_path: Path, bell: Bell) -> None:
    path = tmp_path / "penstock.db"
    with Database.open(f"sqlite:///{path}") as database, open_feed(database, bell) as feed:
        assert feed.changed()
        path.rename(tmp_path / "old.db")
        with pytest.raises(UnavailableError, match="was moved away or replaced"):
            feed.changed()
        path.touch()
        with pytest.raises(UnavailableError, match="was moved away or replaced"):
            feed.changed()


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


def notify(other: psycopg.Connection) -> None:
    other.execute("SELECT pg_notify(%s, '1')", (CHANNEL,))


@pytest.mark.needs("postgresql")
def test_a_notice_ends_the_sleep(postgres_url: str, other: psycopg.Connection, bell: Bell) -> None:
    with Database.open(postgres_url) as database, open_feed(database, bell) as feed:
        assert feed.changed()
        for _ in range(3):
            timer = threading.Timer(0.05, notify, [other])
            timer.start()
            started = time.monotonic()
            feed.sleep(LONG)
            assert time.monotonic() - started < LONG
            assert feed.changed()
            timer.join()


@pytest.mark.needs("postgresql")
def test_a_notice_that_comes_along_with_an_answer_is_not_lost(
    postgres_url: str, other: psycopg.Connection, bell: Bell
) -> None:
    with Database.open(postgres_url) as database, open_feed(database, bell) as feed:
        assert feed.changed()
        for _ in range(20):
            with feed.connection.begin():
                feed.connection.scalar(count)
                notify(other)
                # The server hands the notice over with the answer that ends this transaction.
            started = time.monotonic()
            feed.sleep(LONG)
            assert time.monotonic() - started < LONG
            assert feed.changed()


@pytest.mark.needs("postgresql")
def test_a_listening_connection_never_goes_back_into_the_pool(
    postgres_url: str, bell: Bell
) -> None:
    listening = sa.text("SELECT count(*) FROM pg_listening_channels()")
    with Database.open(postgres_url) as database:
        with open_feed(database, bell) as feed:
            assert isinstance(feed, PostgresFeed)
            with feed.connection.begin():
                assert feed.connection.scalar(listening) == 1
        with database.read() as connection:
            assert connection.scalar(listening) == 0


@pytest.mark.needs("postgresql")
def test_a_lost_connection_ends_the_feed(
    postgres_url: str, other: psycopg.Connection, bell: Bell
) -> None:
    with Database.open(postgres_url) as database, open_feed(database, bell) as feed:
        with feed.connection.begin():
            backend = feed.connection.scalar(sa.text("SELECT pg_backend_pid()"))
        assert feed.changed()
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))
        started = time.monotonic()
        feed.sleep(LONG)
        with pytest.raises(UnavailableError, match=r"the connection to postgresql://.* broke"):
            feed.changed()
        assert time.monotonic() - started < LONG
