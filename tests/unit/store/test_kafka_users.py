"""Users at a Kafka cluster and the progress of the cluster, in both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from penstock.errors import UsageError
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from penstock.store.kafka_users import (
    HOLD_SECONDS,
    BusyError,
    KafkaUsers,
    Progress,
    SealedCredential,
)

CREDENTIAL = SealedCredential("SCRAM-SHA-512", 4096, b"salt", b"sealed")


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_a_password_is_pending_until_the_cluster_has_that_very_one(database: Database) -> None:
    users = KafkaUsers(database)
    users.register(["b"])
    users.put("a", CREDENTIAL)
    assert list(users.users()) == ["a", "b"]
    first = users.user("a")
    assert first is not None
    assert (first.version, first.is_pending, first.credential) == (1, True, CREDENTIAL)
    users.put("a", CREDENTIAL)
    users.mark_applied([("a", first.version)])
    second = users.user("a")
    assert second is not None
    assert second.is_pending
    users.mark_applied([("a", second.version)])
    users.register(["a", "b"])
    assert not users.users()["a"].is_pending
    users.mark_applied([("a", 0)])  # the cluster has lost the password
    assert users.users()["a"].is_pending
    assert users.users()["b"].credential is None
    assert users.pending() == {"a"}
    assert users.names() == {"a", "b"}
    users.forget([("a", 1), ("nobody", 1)])
    assert list(users.users()) == ["a", "b"]
    users.forget([("a", 2)])
    assert users.pending() == set()
    assert list(users.users()) == ["b"]
    assert users.user("a") is None


def test_a_password_goes_with_the_transaction_it_is_part_of(database: Database) -> None:
    users = KafkaUsers(database)
    definitions = Definitions(database)

    def fail(connection: Connection, change: object) -> None:
        users.put_within(connection, "a", CREDENTIAL)
        raise UsageError("no")

    with pytest.raises(UsageError):
        definitions.change(lambda _: [], actor="a", reason="", then=fail)
    assert users.users() == {}


def test_one_works_at_a_time_and_progress_is_kept(database: Database) -> None:
    clock = Clock()
    users = KafkaUsers(database, clock=clock)
    assert users.progress() == Progress()
    with users.working() as holding:
        with pytest.raises(BusyError), users.working():
            pass
        holding.fail("down")
        began = clock.now
        clock.now += timedelta(seconds=5)
        holding.fail("still down" * 100)
        found = users.progress()
        assert (found.attempts, found.since) == (2, began)
        assert len(found.trouble) == 500
        holding.complete("c", 7, "m")
    assert users.progress() == Progress("c", 7, "m")


def test_who_stayed_away_too_long_writes_nothing_more(database: Database) -> None:
    clock = Clock()
    users = KafkaUsers(database, clock=clock)
    with users.working() as late:
        clock.now += timedelta(seconds=HOLD_SECONDS + 1)
        with users.working() as next_one:
            with pytest.raises(BusyError):
                late.renew()
            with pytest.raises(BusyError):
                late.complete("c", 9, "m")
            assert users.progress().epoch == -1
            next_one.renew()
            next_one.complete("c", 3, "m")
    assert users.progress().epoch == 3
