"""Values sealed under the key of a person: opened as they were, until the key is destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.json_text import ERASED, UNREAD
from penstock.store.database import Database
from penstock.store.keys import OVERHEAD, SEALED, PersonKeys, person_keys_table
from penstock.store.sealed_records import KeyAddress, Layers

SECRET = bytes(range(32))
MOST = 1000


def seal(keys: PersonKeys, **values: bytes) -> tuple[list[bytes], list[bytes]]:
    return keys.seal("t", [name.encode() for name in values], list(values.values()), MOST)


def test_a_destroyed_key_reads_as_erased_and_is_never_made_again(database: Database) -> None:
    writer, reader = PersonKeys(database, SECRET), PersonKeys(database, SECRET)
    marks, sealed = seal(writer, ann=b"1", anna=b"2")
    assert b"ann" not in b"".join(marks + sealed)
    assert all(it.startswith(SEALED) for it in sealed)
    assert reader.open("t", [*sealed, b"clear", None]) == [b"1", b"2", b"clear", None]
    assert PersonKeys(database, SECRET).destroy("ann") == 1
    # Neither who reads nor who writes goes on with what it remembers.
    assert reader.open("t", sealed) == [ERASED, b"2"]
    _, (later,) = seal(writer, ann=b"3")
    assert reader.open("t", [*sealed, later]) == [ERASED, b"2", b"3"]
    assert writer.destroy("nobody") == 0
    assert writer.destroy("ann") == 1
    assert reader.open("t", [later]) == [ERASED]


def test_nothing_opens_elsewhere_or_changed(database: Database) -> None:
    keys = PersonKeys(database, SECRET)
    _, (one, other) = seal(keys, ann=b"1", bob=b"2")
    assert keys.open("other", [one]) == [one]
    changed = one[:-1] + bytes((one[-1] ^ 1,))
    # The value of one under the key of the other.
    start = len(SEALED)
    swapped = SEALED + other[start : start + 16] + one[start + 16 :]
    assert keys.open("t", [changed, swapped, SEALED]) == [changed, swapped, ERASED]


def test_keys_are_wrapped_and_no_name_is_in_the_database(database: Database) -> None:
    keys = PersonKeys(database, SECRET)
    seal(keys, ann=b"1")
    with database.read() as connection:
        (row,) = connection.execute(person_keys_table.select()).all()
    assert "ann" not in row.subject
    assert len(row.wrapped) == 12 + 32 + 16


def test_what_is_about_nobody_stays_in_clear_and_what_is_too_long_is_cut(
    database: Database,
) -> None:
    keys = PersonKeys(database, SECRET)
    named, made = keys.seal("t", [b"", b"\xff", b"ann"], [b"1", b"2", b"x" * MOST], MOST)
    assert named[:2] == [b"", b""]
    assert made[:2] == [b"1", b"2"]
    assert len(made[2]) == MOST
    assert keys.open("t", made[2:]) == [UNREAD + b"x" * (MOST - OVERHEAD - len(UNREAD))]


def test_tasks_open_by_the_address_which_shows_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    with Database.open(url) as database:
        _, sealed = seal(PersonKeys(database, SECRET), ann=b"1")
        address = KeyAddress(url, SECRET, None)
        assert address.open(Layers("t", None, shredded=True), list(sealed)) == [b"1"]
        assert SECRET.hex() not in repr(address)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> PersonKeys:
    path = tmp_path_factory.mktemp("keys") / "penstock.db"
    return PersonKeys(Database.open(f"sqlite:///{path}"), SECRET)


@given(
    records=st.lists(
        st.tuples(st.sampled_from(["a", "aa", "b", "ü", "*"]), st.binary(max_size=50))
    ),
    gone=st.sets(st.sampled_from(["a", "aa", "b", "ü", "*"])),
)
def test_exactly_those_whose_key_is_gone_are_erased(
    shared: PersonKeys, records: list[tuple[str, bytes]], gone: set[str]
) -> None:
    people = [who.encode() for who, _ in records]
    _, sealed = shared.seal("t", people, [value for _, value in records], MOST)
    for who in gone:
        shared.destroy(who)
    expected = [ERASED if who in gone else value for who, value in records]
    assert shared.open("t", list(sealed)) == expected
