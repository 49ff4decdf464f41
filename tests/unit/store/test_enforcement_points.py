"""Whoever prohibits something waits for every point that may still deliver it, and no longer."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from penstock.errors import UnavailableError
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.enforcement_points import EnforcementPoints, points_table
from penstock.store.opt_outs import SubjectMarks

LEASE = 4.0


class Time:
    """A clock that goes on by sleeping, and lets things happen then."""

    def __init__(self) -> None:
        self.now = 100.0
        self.at: dict[float, list[object]] = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def listed(database: Database) -> dict[str, int]:
    with database.read() as connection:
        rows = connection.execute(sa.select(points_table.c.holder, points_table.c.epoch))
        return {row.holder: row.epoch for row in rows}


def test_nobody_waits_where_nobody_delivers(database: Database) -> None:
    time = Time()
    EnforcementPoints(database, clock=time, sleep=time.sleep).wait(7)
    assert time.now == 100.0


def test_it_is_waited_until_all_have_confirmed(database: Database) -> None:
    points = EnforcementPoints(database)
    for holder in ("a", "b"):
        points.register(holder, 600)
    waiting = threading.Thread(target=points.wait, args=(7,))
    waiting.start()
    assert points.confirm("a", 7)
    assert points.confirm("b", 6)
    waiting.join(0.1)
    assert waiting.is_alive()
    assert points.confirm("b", 8)
    waiting.join(10)
    assert not waiting.is_alive()
    assert listed(database) == {"a": 7, "b": 8}


def test_who_does_not_confirm_within_the_lease_has_none_and_is_taken_off(
    database: Database,
) -> None:
    time = Time()
    points = EnforcementPoints(database, clock=time, sleep=time.sleep)
    points.register("dead", LEASE)
    points.register("alive", 2 * LEASE)
    points.confirm("alive", 9)
    points.wait(9)
    assert LEASE < time.now - 100 < 2 * LEASE
    assert listed(database) == {"alive": 9}
    # It has to register again before a look of its own counts.
    assert not points.confirm("dead", 9)
    with database.read() as connection:
        assert not points.is_registered(connection, "dead")
        assert points.is_registered(connection, "alive")
    points.withdraw("alive")
    assert listed(database) == {}


def test_where_the_store_goes_away_time_tells(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    points = EnforcementPoints(database, clock=time, sleep=time.sleep)
    points.register("a", LEASE)
    read = database.read

    def fail() -> object:
        if time.now > 101:
            raise UnavailableError("away")
        return read()

    monkeypatch.setattr(database, "read", fail)
    points.wait(3)
    assert time.now - 100 > LEASE
    with pytest.raises(UnavailableError):
        points.wait(3)


def test_the_answer_to_an_opt_out_waits_and_that_to_an_opt_in_does_not(database: Database) -> None:
    book = ConsentBook(database, SubjectMarks(bytes(32)))
    points = EnforcementPoints(database)
    points.register("slow", 600)
    done: list[list[str]] = []
    choosing = threading.Thread(
        target=lambda: done.append(book.choose(Choice.OPT_OUT, ["p"], "ads"))
    )
    choosing.start()
    choosing.join(0.3)
    assert choosing.is_alive()
    assert set(book.opt_outs().refusing(["ads"])) == {book.marks.of("p")}
    assert points.confirm("slow", book.opt_outs().epoch)
    choosing.join(10)
    assert done == [["p"]]
    assert book.choose(Choice.OPT_IN, ["p"], "ads") == ["p"]
