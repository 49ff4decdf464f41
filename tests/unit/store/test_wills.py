"""Wills in the store: one keeper each, taken over by one other when that is gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.store.database import Database
from penstock.store.wills import LIFE, DroppedWill, KeptWill, WillStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def nobody(keeper: str, place: str) -> bool:
    del keeper, place
    return False


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def will(number: str, client: str) -> KeptWill:
    return KeptWill(number, client, "sensor", 60, b"packet of " + client.encode())


def test_a_will_is_taken_over_once_from_a_keeper_that_is_gone(database: Database) -> None:
    clock = Clock()
    stores = {it: WillStore(database, it, f"host of {it}", clock=clock) for it in "abc"}
    stores["a"].apply([will("1", "x"), will("2", "y"), DroppedWill("2"), will("3", "z")])
    stores["b"].apply([will("4", "other")])
    assert stores["c"].take(nobody) == []

    def is_gone(keeper: str, place: str) -> bool:
        return (keeper, place) == ("a", "host of a")

    taken = stores["c"].take(is_gone)
    assert [(it.number, it.principal, it.expiry, it.packet) for it in taken] == [
        ("1", "sensor", 60, b"packet of x"),
        ("3", "sensor", 60, b"packet of z"),
    ]
    assert stores["b"].take(is_gone) == []
    assert not stores["a"].renew()  # it was taken for dead, and knows it now
    assert stores["a"].renew()
    stores["c"].apply([DroppedWill("1")])
    # Who took wills over and dies as well leaves those that it has not sent.
    (left,) = stores["b"].take(lambda keeper, _: keeper == "c")
    assert left.number == "3"


def test_a_keeper_that_says_nothing_for_long_is_gone(database: Database) -> None:
    clock = Clock()
    one, other = (WillStore(database, it, it, clock=clock) for it in "ab")
    one.apply([will("1", "x")])
    clock.now += LIFE - timedelta(seconds=1)
    assert one.renew()
    clock.now += LIFE - timedelta(seconds=1)
    assert other.take(nobody) == []
    clock.now += timedelta(seconds=1)
    assert [it.number for it in other.take(nobody)] == ["1"]
    other.leave()
    assert [it.number for it in one.take(nobody)] == ["1"]


def test_a_client_that_is_back_with_a_will_has_no_other(database: Database) -> None:
    clock = Clock()
    one, other = (WillStore(database, it, it, clock=clock) for it in "ab")
    one.apply([will("1", "x")])
    other.apply([will("2", "x")])
    assert one.take(lambda keeper, _: keeper == "b")[0].number == "2"
    assert other.take(lambda keeper, _: keeper == "a")[0].number == "2"
