from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import set as definition_set
from penstock.definitions.document_checks import validate_document
from penstock.definitions.set import DefinitionSet
from penstock.errors import InvalidError
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, Wanted
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Change, Definitions
from penstock.store.purpose_state import STATE, StateLog

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


def test_what_was_checked_for_a_change_is_not_read_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Key] = []
    validate = validate_document

    def count(document: Document, *rest: Any) -> Definition | None:
        read.append(document.key)
        return validate(document, *rest)

    monkeypatch.setattr(definition_set, "validate_document", count)
    checked = CheckedDefinitions(Definitions(database))
    checked.apply([reservation(ONE, "x"), reservation(TWO, "y")], actor="test")
    checked.edit(lambda _: {ONE: reservation(ONE, "x"), TWO: reservation(TWO, "z")}, actor="test")
    snapshot, meaning = checked.current()
    assert read == [ONE, TWO, TWO]
    fresh = DefinitionSet.build(snapshot.documents.values())
    assert meaning.definitions == fresh.definitions


def test_what_reads_otherwise_once_it_is_stored_is_read_again(database: Database) -> None:
    checked = CheckedDefinitions(Definitions(database))
    checked.apply([Document(ONE.kind, ONE.name, {"allow": ("x",), "prohibit": ()})], actor="test")
    snapshot, meaning = checked.current()
    assert snapshot.documents[ONE].body["allow"] == ["x"]
    fresh = DefinitionSet.build(snapshot.documents.values())
    assert meaning.definitions == fresh.definitions


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


def test_nothing_is_stored_by_which_somebody_has_too_many_roles(database: Database) -> None:
    checked = CheckedDefinitions(Definitions(database))
    every_pair = {
        "role": "pair(x, y)",
        "requires": [{"appointment": "a(x)"}, {"appointment": "b(y)"}],
    }
    checked.apply(
        [
            Document("role", "pair", {"parameters": ["x", "y"]}),
            Document("activation-rule", "pairs", every_pair),
        ],
        actor="test",
    )
    many = [
        Document("appointment", f"{of}{at}", {"credential": f'{of}("{at}")', "holder": "user:ann"})
        for of in "ab"
        for at in range(200)
    ]
    with pytest.raises(InvalidError, match="problem") as caught:
        checked.apply(many, actor="test")
    assert "role pair: more than 20000" in str(caught.value)
    assert not any(key.kind == "appointment" for key in checked.current()[0].documents)
    checked.apply(many[:210], actor="test")
    # Deleting is never refused: it takes roles away.
    checked.delete([many[0].key], actor="test")


def test_a_rollback_brings_no_revoked_appointment_back(database: Database) -> None:
    checked = CheckedDefinitions(Definitions(database))
    body = {"credential": 'treats("ann", "p1")', "holder": "user:ann"}
    revoked, ended, added = (Document("appointment", name, body) for name in ("r", "e", "a"))
    shorter = Document("appointment", "e", {**body, "valid_until": "2026-01-01T00:00:00Z"})
    first = checked.apply([revoked, ended, reservation(ONE, "x")], actor="test").epoch
    checked.apply([shorter, added, reservation(ONE, "y")], actor="test")
    checked.delete([revoked.key], actor="test")
    now = checked.rollback(first, actor="test").after.documents
    assert now[ONE] == reservation(ONE, "x")
    assert now[shorter.key] == shorter
    assert not {revoked.key, added.key} & now.keys()
    # Who names it means it.
    named = checked.rollback(first, keys=[revoked.key], actor="test").after.documents
    assert named[revoked.key] == revoked
