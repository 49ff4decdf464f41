from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, Wanted
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Change, Definitions
from penstock.store.session_state import STATE, StateLog

ONE, TWO = Key("reservation", "a"), Key("reservation", "b")


def reservation(key: Key, *allow: str) -> Document:
    return Document(key.kind, key.name, {"allow": list(allow), "prohibit": []})


def test_an_edit_sees_the_set_that_is_changed(database: Database) -> None:
    first = CheckedDefinitions(Definitions(database))
    second = CheckedDefinitions(Definitions(database))
    first.apply([reservation(ONE, "x")], actor="test")
    second.current()
    first.apply([reservation(ONE, "y")], actor="test")

    def add(now: Snapshot) -> Wanted:
        held = now.documents[ONE].body["allow"]
        return {ONE: reservation(ONE, *held, "z"), TWO: None}

    change = second.edit(add, actor="test")
    assert change.after.documents[ONE] == reservation(ONE, "y", "z")
    assert TWO not in change.after.documents
    assert second.edit(lambda now: {ONE: now.documents[ONE]}, actor="test").is_empty
    assert second.edit(lambda _: {ONE: None}, actor="test").deleted == (ONE,)


def test_an_edit_is_checked_and_recorded_or_not_made(database: Database) -> None:
    recorded: list[tuple[Change, str]] = []
    checked = CheckedDefinitions(
        Definitions(database), lambda _, change, actor, __: recorded.append((change, actor))
    )
    with pytest.raises(InvalidError):
        checked.edit(lambda _: {ONE: reservation(ONE, "not//a purpose")}, actor="test")
    assert recorded == []
    change = checked.edit(lambda _: {ONE: reservation(ONE, "x")}, actor="test")
    assert recorded == [(change, "test")]

    def fail(*_: object) -> None:
        raise OSError("no room")

    failing = CheckedDefinitions(Definitions(database), fail)
    with pytest.raises(OSError, match="no room"):
        failing.edit(lambda _: {ONE: None}, actor="test")
    assert ONE in checked.current()[0].documents


def test_a_rollback_does_not_undo_what_commands_did(database: Database) -> None:
    checked = CheckedDefinitions(Definitions(database))
    logs = [StateLog().add("persist", 1), StateLog().add("persist", 1).add("clear", 2)]
    for count, log in enumerate(logs):
        checked.apply([log.document(), reservation(ONE, f"x{count}")], actor="test")
    change = checked.rollback(1, actor="test")
    assert change.after.documents[ONE] == reservation(ONE, "x0")
    assert StateLog.read(change.after.documents[STATE].body) == logs[1]
    named = checked.rollback(1, keys=[STATE], actor="test")
    assert StateLog.read(named.after.documents[STATE].body) == logs[0]
