from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, event

from penstock.errors import InvalidError, UnavailableError, UsageError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import (
    Delete,
    Edit,
    EditLimits,
    Put,
    Snapshot,
    edits_between,
)
from penstock.store.definitions.history import Change, Definitions
from penstock.store.schema import CHANNEL, epochs, revisions

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
A, B, C = Key("topic", "a"), Key("topic", "b"), Key("view", "c")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def definitions(database: Database) -> Definitions:
    return Definitions(database, clock=Clock())


def put(key: Key, value: Any = 0) -> Put:
    return Put(Document(key.kind, key.name, {"value": value}))


def apply(definitions: Definitions, *edits: Edit) -> Change:
    return definitions.change(lambda _: edits, actor="ann", reason="a test")


def values(snapshot: Snapshot) -> dict[Key, Any]:
    return {key: document.body["value"] for key, document in snapshot.documents.items()}


def count_rows(database: Database) -> tuple[int, int]:
    with database.read() as connection:
        return (
            connection.scalar(sa.select(sa.func.count()).select_from(epochs)) or 0,
            connection.scalar(sa.select(sa.func.count()).select_from(revisions)) or 0,
        )


def test_a_new_store_is_at_epoch_0_and_empty(definitions: Definitions) -> None:
    snapshot = definitions.snapshot()
    assert (snapshot.epoch, dict(snapshot.documents)) == (0, {})


def test_a_change_raises_the_epoch_and_says_what_it_did(definitions: Definitions) -> None:
    apply(definitions, put(A), put(B))
    change = apply(definitions, put(A, 1), Delete(B), put(C))
    assert (change.epoch, change.is_empty) == (2, False)
    assert (change.created, change.updated, change.deleted) == ((C,), (A,), (B,))
    assert values(change.before) == {A: 0, B: 0}
    assert values(change.after) == values(definitions.snapshot()) == {A: 1, C: 0}


def test_another_process_sees_the_same(definitions: Definitions, database: Database) -> None:
    change = apply(definitions, put(A, {"ü": [1, 1.5, None, True, "\u0000"]}), put(B))
    assert Definitions(database).snapshot() == change.after


def test_a_change_that_alters_nothing_writes_nothing(
    definitions: Definitions, database: Database
) -> None:
    apply(definitions, Put(Document("topic", "a", {"x": 1, "y": [1, 2]})))
    rows = count_rows(database)
    change = apply(definitions, Put(Document("topic", "a", {"y": (1, 2), "x": 1})), Delete(B))
    assert change.is_empty
    assert change.epoch == 1
    assert count_rows(database) == rows
    assert apply(definitions).is_empty


@pytest.mark.parametrize(("held", "given"), [(1, True), (1, 1.0), (0, None), ("1", 1), ([], {})])
def test_what_differs_in_json_differs(definitions: Definitions, held: Any, given: Any) -> None:
    apply(definitions, put(A, held))
    assert apply(definitions, put(A, given)).updated == (A,)


def test_a_callback_that_raises_leaves_all_as_it_was(
    definitions: Definitions, database: Database
) -> None:
    apply(definitions, put(A))
    rows = count_rows(database)

    def refuse(snapshot: Snapshot) -> Sequence[Edit]:
        assert values(snapshot) == {A: 0}
        raise UsageError("no")

    def fail(connection: Connection, change: Change) -> None:
        assert change.updated == (A,)
        raise UsageError("no")

    with pytest.raises(UsageError):
        definitions.change(refuse, actor="ann", reason="")
    with pytest.raises(UsageError):
        definitions.change(lambda _: [put(A, 1)], actor="ann", reason="", then=fail)
    assert count_rows(database) == rows
    assert values(definitions.snapshot()) == {A: 0}


def test_further_rows_can_be_written_in_the_same_transaction(
    definitions: Definitions, database: Database
) -> None:
    def add(connection: Connection, change: Change) -> None:
        connection.execute(
            epochs.insert().values(
                epoch=100 + change.epoch, mark="", at=START, actor="-", reason="-"
            )
        )

    definitions.change(lambda _: [put(A)], actor="ann", reason="", then=add)
    assert count_rows(database)[0] == 3


def test_bad_edits_write_nothing(definitions: Definitions, database: Database) -> None:
    with pytest.raises(InvalidError):
        apply(definitions, put(A), put(B, float("nan")))
    with pytest.raises(InvalidError):
        definitions.change(lambda _: [put(A)], actor="", reason="")
    assert count_rows(database) == (1, 0)


def test_the_store_takes_a_limited_number_of_definitions(database: Database) -> None:
    definitions = Definitions(database, limits=EditLimits(documents=2))
    apply(definitions, put(A), put(B))
    with pytest.raises(InvalidError) as raised:
        apply(definitions, put(C))
    assert "3 definitions; at most 2 are allowed" in str(raised.value)
    assert apply(definitions, put(C), Delete(A)).epoch == 2


def test_every_earlier_epoch_can_be_read(definitions: Definitions) -> None:
    apply(definitions, put(A), put(B))
    apply(definitions, put(A, 1), Delete(B))
    apply(definitions, put(B, 2))
    assert [values(definitions.snapshot_at(epoch)) for epoch in range(4)] == [
        {},
        {A: 0, B: 0},
        {A: 1},
        {A: 1, B: 2},
    ]


@pytest.mark.parametrize("epoch", [-1, 2, 10**12])
def test_an_epoch_that_does_not_exist_is_refused(definitions: Definitions, epoch: int) -> None:
    apply(definitions, put(A))
    with pytest.raises(UsageError, match=f"there is no epoch {epoch} → choose one from 0 to 1"):
        definitions.snapshot_at(epoch)


def test_the_history_of_one_definition(definitions: Definitions) -> None:
    definitions.change(lambda _: [put(A)], actor="ann", reason="one")
    definitions.change(lambda _: [put(B)], actor="ann", reason="two")
    definitions.change(lambda _: [Delete(A)], actor="bob", reason="three")
    third, first = definitions.history(A)
    assert (third.epoch, third.actor, third.reason, third.document) == (3, "bob", "three", None)
    assert third.at == START + timedelta(seconds=3)
    assert (first.epoch, first.actor, first.document) == (1, "ann", put(A).document)
    assert definitions.history(A, limit=1) == [third]
    assert definitions.history(C) == []


def test_the_history_of_the_whole_set(definitions: Definitions) -> None:
    apply(definitions, put(A), put(B))
    apply(definitions, Delete(A))
    found = definitions.epochs()
    assert [(epoch.epoch, epoch.changes) for epoch in found] == [(2, 1), (1, 2), (0, 0)]
    assert found[0].at == START + timedelta(seconds=2)
    assert found[2].reason == "the store was made"
    assert definitions.epochs(limit=2) == found[:2]


def test_an_earlier_set_can_be_brought_back_from_within_a_change(definitions: Definitions) -> None:
    apply(definitions, put(A), put(B))
    apply(definitions, put(A, 1), Delete(B), put(C))

    def back(now: Snapshot) -> Sequence[Edit]:
        return edits_between(now.documents, definitions.snapshot_at(1).documents)

    change = definitions.change(back, actor="ann", reason="back")
    assert (change.epoch, change.created, change.updated, change.deleted) == (3, (B,), (A,), (C,))
    assert values(definitions.snapshot()) == {A: 0, B: 0}
    assert definitions.change(back, actor="ann", reason="again").is_empty


@pytest.mark.needs("postgresql")
def test_listeners_on_postgresql_are_told_of_each_change(postgres_url: str) -> None:
    with (
        Database.open(postgres_url) as database,
        psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as listener,
    ):
        listener.execute(f"LISTEN {CHANNEL}".encode())
        definitions = Definitions(database)
        apply(definitions, put(A))
        apply(definitions, put(A))  # changes nothing, so there is nothing to tell
        apply(definitions, put(A, 1))
        told = listener.notifies(timeout=20, stop_after=2)
        assert [notice.payload for notice in told] == ["1", "2"]


def test_only_what_changed_is_loaded(database: Database) -> None:
    writer, reader = Definitions(database), Definitions(database)
    apply(writer, put(A), put(B))
    held = reader.snapshot()
    assert reader.snapshot() is held
    apply(writer, put(C), Delete(B))
    loads: list[str] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def listen(*arguments: Any) -> None:
        if "FROM revisions" in arguments[2]:
            loads.append(arguments[2])

    after = reader.snapshot()
    assert values(after) == {A: 0, C: 0}
    assert after.documents[A] is held.documents[A]
    assert len(loads) == 1
    assert reader.snapshot() is after
    assert len(loads) == 1


def test_a_restored_database_is_loaded_whole(database: Database) -> None:
    reader, writer = Definitions(database), Definitions(database)
    apply(writer, put(A), put(B))
    assert reader.snapshot().epoch == 1
    # As after a restore: the same number, but another history.
    with database.write() as connection:
        connection.execute(epochs.update().where(epochs.c.epoch == 1).values(mark="other"))
        connection.execute(revisions.update().values(body='{"value":9}'))
    assert values(reader.snapshot()) == {A: 9, B: 9}
    assert apply(writer, put(A, 9)).is_empty


def test_an_emptied_store_is_an_error_not_an_empty_set(database: Database) -> None:
    with database.write() as connection:
        connection.execute(epochs.delete())
    with pytest.raises(UnavailableError, match="no epoch at all"):
        Definitions(database).snapshot()
