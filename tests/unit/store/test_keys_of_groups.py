"""Keys of groups: wrapped, shared by all who open the store, and destroyed for good."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.keys import GroupKeys, KeyWrapping, StoredKey

SECRET = bytes(range(32))
WRAPPING = KeyWrapping(SECRET, "group keys")


def test_keys_are_there_for_whoever_opens_the_store(database: Database) -> None:
    writer, reader = (
        GroupKeys(database, WRAPPING),
        GroupKeys(database, WRAPPING),
    )
    assert reader.changes() == 0
    resource = uuid4()
    first, second = (StoredKey(resource, it, 10 * it, os.urandom(32)) for it in (1, 2))
    writer.add([second, first])
    assert reader.keys() == [first, second]
    # A generation is what it was when it came.
    writer.add([first._replace(secret=os.urandom(32))])
    assert reader.keys() == [first, second]
    before = reader.changes()
    assert writer.destroy([(resource, 1), (resource, 5)]) == 1
    assert reader.keys() == [second]
    assert reader.changes() > before


def test_what_is_stored_opens_under_the_secret_alone(database: Database) -> None:
    GroupKeys(database, WRAPPING).add([StoredKey(uuid4(), 1, 0, b"s" * 32)])
    with pytest.raises(UnavailableError, match="do not open under this domain's key"):
        GroupKeys(database, KeyWrapping(bytes(32), "group keys")).keys()


def test_destroyed_keys_and_states_are_not_in_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    database = Database.open(url)
    keys, resource = GroupKeys(database, WRAPPING), uuid4()
    keys.add([StoredKey(resource, it, it, os.urandom(32)) for it in range(50)])
    with database.read() as connection:
        rows = list(connection.exec_driver_sql("SELECT wrapped FROM group_keys").scalars())
    keys.destroy([(resource, it) for it in range(50)])
    keys.change_group(resource, "manager", lambda _: b"state of the group " * 50)
    with database.read() as connection:
        rows += connection.exec_driver_sql("SELECT wrapped FROM key_groups").scalars().all()
    keys.change_group(resource, "manager", lambda _: None)
    with database.write("checkpoint") as connection:
        assert not connection.exec_driver_sql("SELECT 1 FROM group_keys").all()
    database.close()
    left = b"".join(it.read_bytes() for it in tmp_path.iterdir())
    assert not any(bytes(row)[12:44] in left for row in rows)


def test_managers_take_turns(database: Database) -> None:
    resource = uuid4()

    def count(before: bytes | None) -> bytes:
        return str(int(before or b"0") + 1).encode()

    def manage() -> None:
        keys = GroupKeys(database, WRAPPING)
        for _ in range(5):
            keys.change_group(resource, "manager", count)

    threads = [threading.Thread(target=manage) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = GroupKeys(database, WRAPPING)
    seen: list[bytes | None] = []

    def look(before: bytes | None) -> bytes | None:
        seen.append(before)
        return before

    keys.change_group(resource, "manager", look)
    assert seen == [b"15"]
    assert keys.groups("manager") == [resource]
    assert keys.groups("member") == []
