from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from penstock.clock import boot_clock
from penstock.errors import UsageError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import Delete, Edit, Put, Update
from penstock.store.definitions.history import Definitions
from penstock.store.follower import Bell, Follower, StaleError, open_feed
from penstock.store.schema import epochs

SOON = 60.0
A, B = Key("topic", "a"), Key("topic", "b")


def put(key: Key, value: Any = 0) -> Put:
    return Put(Document(key.kind, key.name, {"value": value}))


def apply(database: Database, *edits: Edit) -> int:
    return Definitions(database).change(lambda _: edits, actor="ann", reason="").epoch


def summary(update: Update) -> tuple[int, set[Key]]:
    return update.snapshot.epoch, set(update.changed)


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_follower_knows_what_was_there_and_what_comes(database: Database) -> None:
    apply(database, put(A))
    with Follower(database) as follower:
        first = follower.wait_for(1, SOON)
        assert dict(first.documents) == {A: put(A).document}
        epoch = apply(database, put(B), Delete(A))
        assert dict(follower.wait_for(epoch, SOON).documents) == {B: put(B).document}
        assert follower.current().epoch == epoch
        status = follower.status()
        assert (status.epoch, status.is_fresh, status.trouble) == (2, True, None)


def test_nothing_is_known_before_the_first_look(database: Database) -> None:
    follower = Follower(database)
    with pytest.raises(StaleError, match="have not been loaded yet"):
        follower.current()
    assert follower.status().epoch is None


def test_an_epoch_that_does_not_come_is_not_waited_for_for_ever(database: Database) -> None:
    with Follower(database) as follower:
        follower.wait_for(0, SOON)
        with pytest.raises(StaleError, match=r"epoch 7 did not arrive within 0\.05 s"):
            follower.wait_for(7, 0.05)


def test_the_lease_is_renewed_while_nothing_changes(database: Database) -> None:
    with Follower(database, lease=3.0) as follower:
        snapshot = follower.wait_for(0, SOON)
        started = boot_clock()
        eventually(lambda: boot_clock() - (follower.status().age or 0) > started + 0.5)
        assert follower.current() is snapshot


def test_a_companion_that_begins_with_more_than_a_lease_of_work_keeps_nobody_out(
    database: Database,
) -> None:
    now = 1000.0

    class Companion:
        looks = 0

        def look(self, connection: Connection) -> None:
            nonlocal now
            del connection
            if not self.looks:
                now += 60  # a million opt-outs, on a machine with other work
            self.looks += 1

    with Follower(database, lease=5, clock=lambda: now, companion=Companion()) as follower:
        follower.wait_for(0, SOON)
        assert follower.current().epoch == 0


def test_who_cannot_know_is_stale_once_the_lease_is_over(database: Database) -> None:
    now = 1000.0
    follower = Follower(database, lease=5, clock=lambda: now)
    with follower:
        follower.wait_for(0, SOON)
    now = 1005.0
    assert follower.current().epoch == 0
    now = 1005.1
    with pytest.raises(StaleError, match=r"epoch 0 were last known .* 5\.1 s ago.*lease of 5 s"):
        follower.current()
    assert not follower.status().is_fresh


def test_the_lease_begins_before_the_database_is_asked(database: Database) -> None:
    times = iter([100.0])
    follower = Follower(database, lease=5, clock=lambda: next(times, 109.0))
    with open_feed(database, Bell()) as feed:
        follower._look(feed)  # asked at 100, answered at 109
        with pytest.raises(StaleError, match=r"9\.0 s ago"):
            follower.current()
        follower._look(feed)
        assert follower.current().epoch == 0


def test_a_lease_that_cannot_be_kept_is_refused(database: Database) -> None:
    with pytest.raises(UsageError, match=r"a lease of 0\.05 s is too short.*at least 0\.1 s"):
        Follower(database, lease=0.05)


def test_the_clock_goes_on_and_never_back() -> None:
    first = boot_clock()
    time.sleep(0.01)
    assert 0.01 <= boot_clock() - first < SOON


def test_a_subscriber_gets_the_whole_set_and_then_what_changes(database: Database) -> None:
    apply(database, put(A))
    seen: list[Update] = []
    with Follower(database) as follower:
        follower.wait_for(1, SOON)
        unsubscribe = follower.subscribe(seen.append)
        assert [summary(update) for update in seen] == [(1, {A})]
        follower.wait_for(apply(database, put(B)), SOON)
        follower.wait_for(apply(database, Delete(A)), SOON)
        unsubscribe()
        unsubscribe()
        follower.wait_for(apply(database, put(A)), SOON)
    assert [summary(update) for update in seen[1:]] == [(2, {B}), (3, {A})]


def test_an_update_that_a_subscriber_did_not_take_is_not_known(database: Database) -> None:
    taken: list[Update] = []
    broken = threading.Event()

    def take(update: Update) -> None:
        if broken.is_set():
            raise KeyError("a secret")
        taken.append(update)

    with Follower(database, lease=3.0) as follower:
        follower.wait_for(0, SOON)
        follower.subscribe(take)
        broken.set()
        apply(database, put(A))
        eventually(lambda: not follower.status().is_fresh)
        with pytest.raises(StaleError, match=r"epoch 0 .*unexpected KeyError") as raised:
            follower.current()
        assert "secret" not in str(raised.value)
        broken.clear()
        follower.wait_for(1, SOON)
        assert summary(taken[-1]) == (1, {A})
        assert follower.status().trouble is None


def test_a_database_restored_to_another_history_is_loaded_anew(database: Database) -> None:
    apply(database, put(A), put(B))
    seen: list[Update] = []
    with Follower(database, lease=3.0) as follower:
        follower.wait_for(1, SOON)
        follower.subscribe(seen.append)
        with database.write() as connection:
            connection.execute(epochs.update().where(epochs.c.epoch == 1).values(mark="other"))
        eventually(lambda: follower.current().mark == "other")
    assert seen[-1].changed == {A, B}


def test_a_replaced_file_is_followed_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    with Database.open(f"sqlite:///{there}") as database:
        apply(database, put(B))
        apply(database, put(B, 1))
    with Database.open(f"sqlite:///{here}") as database:
        apply(database, put(A))
        with Follower(database, lease=20.0) as follower:
            follower.wait_for(1, SOON)
            fresh: list[bool] = []
            follower.call_when_lease_changes(lambda: fresh.append(follower.status().is_fresh))
            for left in ("here.db-wal", "here.db-shm"):
                (tmp_path / left).unlink()
            there.replace(here)
            assert dict(follower.wait_for(2, SOON).documents) == {B: put(B, 1).document}
            eventually(lambda: fresh[-1:] == [True])
    assert fresh[0] is False  # told at once, before anything is known to hold again


def test_a_follower_stops_at_once(database: Database) -> None:
    follower = Follower(database, lease=100.0)
    follower.start()
    follower.wait_for(0, SOON)
    started = time.monotonic()
    follower.stop()
    assert time.monotonic() - started < SOON
