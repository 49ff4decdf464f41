"""What the audit log says of changes at Kafka, and what it never says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.secrets import SecretFile
from penstock.kafka.acls import Acl
from penstock.kafka.drift import SINGLE, AccessAudit, Drift
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from penstock.store.kafka_users import KafkaUsers, SealedCredential


class Book:
    """A record on a store of its own, and what it has written."""

    def __init__(self, folder: Path) -> None:
        self.database = Database.open(f"sqlite:///{folder}/penstock.db")
        self.log = AuditLog.open(self.database, SecretFile(folder / "audit.key"))
        self.people = Pseudonyms.open(SecretFile(folder / "pseudonyms.key"))
        self.record = AccessAudit(self.log, self.people, self.people.person("officer"))

    def entries(self) -> list[dict[str, Any]]:
        with self.database.read() as connection:
            found = [it.as_document() for it in read_after(connection, -1, 100_000)]
        return [it for it in found if it["kind"].startswith("kafka.")]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path)
    yield made
    made.database.close()


def topic(name: str) -> Acl:
    return Acl("topic", "literal", name, "read")


def test_few_rules_have_an_entry_each(book: Book) -> None:
    found = Drift(missing=[("ann", topic("t"))], extra=[("bob", topic("u"))])
    book.record.note_order(found, 7)
    removed, put = book.entries()
    assert (removed["rule"], removed["details"]) == (
        book.people.rule("allow read topic u"),
        {"operation": "remove"},
    )
    assert (put["rule"], put["subject"], put["epoch"]) == (
        book.people.rule("allow read topic t"),
        book.people.person("ann"),
        7,
    )
    assert put["actor"] == book.people.person("officer")
    assert {"ann", "bob", "officer"}.isdisjoint(repr(book.entries()).replace("'", " ").split())


def test_many_rules_are_counted_for_each_user(book: Book) -> None:
    many = [("ann", topic(f"t{number}")) for number in range(SINGLE)]
    book.record.note_order(Drift(missing=[*many, ("bob", topic("t"))]), 7)
    assert [(it["subject"], it["rule"], it["details"]["count"]) for it in book.entries()] == [
        (book.people.person("ann"), None, SINGLE),
        (book.people.person("bob"), None, 1),
    ]


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "ann-meyer"])
def test_acls_appear_without_the_names_in_them(book: Book, name: str) -> None:
    acl = Acl("group", "prefixed", name, "read")
    book.record.note_pruning([("User:stranger", acl)], 7)
    (entry,) = book.entries()
    assert entry["rule"] == book.people.rule(str(acl))
    assert entry["rule"].startswith("allow read group r_")
    assert entry["subject"] == book.people.person("stranger")
    assert name not in repr(entry)


def test_a_password_is_stored_with_its_entry_or_not_at_all(book: Book) -> None:
    users = KafkaUsers(book.database)
    credential = SealedCredential("SCRAM-SHA-512", 4096, b"salt", b"sealed")

    def store(*, then: BaseException | None) -> None:
        with book.record.noting("set-password", 7, user="ann") as connection:
            users.put_within(connection, "ann", credential)
            if then is not None:
                raise then

    with pytest.raises(KeyboardInterrupt):
        store(then=KeyboardInterrupt())
    assert (users.users(), book.entries()) == ({}, [])
    store(then=None)
    assert list(users.users()) == ["ann"]
    assert [it["details"] for it in book.entries()] == [{"operation": "set-password"}]
