"""Records of sealed streams: under keys of groups and of people, from the one store of keys."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.json_text import CLOSED, ERASED, FORGED, UNREAD
from penstock.store.database import Database
from penstock.store.keys import GroupKeys, KeyWrapping, PersonKeys, StoredKey
from penstock.store.sealed_records import KeyAddress, Layers, RecordKeys
from penstock.trust.sealed_events import EventLayout

SECRET = bytes(range(32))
WRAPPING = KeyWrapping(SECRET, "group keys")
WHOLE, PLATE, PLACE = UUID(int=1), UUID(int=2), UUID(int=3)
ATTRIBUTES = EventLayout(WHOLE, by_attributes=True, attributes={"plate": PLATE, "place": PLACE})
SIGHTING = b'{"plate":"AB12","place":"gate 3"}'
MOST = 10_000


def layers(event: EventLayout | None = ATTRIBUTES, *, shredded: bool = False) -> Layers:
    return Layers("t", event, shredded)


def give(database: Database, *resources: UUID, generation: int = 1, start: int = 0) -> None:
    keys = [StoredKey(it, generation, start, it.bytes * 2) for it in resources]
    GroupKeys(database, WRAPPING).add(keys)


def open_keys(database: Database, groups: KeyWrapping | None = WRAPPING) -> RecordKeys:
    return RecordKeys(database, SECRET, groups)


def test_both_layers_open_and_each_is_destroyed_by_itself(database: Database) -> None:
    give(database, WHOLE, PLATE, PLACE)
    keys, both = open_keys(database), layers(shredded=True)
    marks, values = keys.seal(both, [b"ann", b"bob"], [SIGHTING] * 2, MOST)
    assert len({*marks}) == 2
    assert all(b"AB12" not in it and b"ann" not in it for it in (*marks, *values))
    reader = open_keys(database)
    assert reader.open(both, values) == [SIGHTING] * 2
    PersonKeys(database, SECRET).destroy("ann")
    assert reader.open(both, values) == [ERASED, SIGHTING]
    GroupKeys(database, WRAPPING).destroy([(PLACE, 1)])
    assert reader.open(both, values) == [ERASED, b'{"plate":"AB12"}']
    GroupKeys(database, WRAPPING).destroy([(PLATE, 1)])
    assert reader.open(both, values) == [ERASED, CLOSED]


def test_each_generation_opens_what_was_sealed_under_it(database: Database) -> None:
    give(database, WHOLE, PLATE, PLACE)
    keys = open_keys(database)
    before = keys.seal(layers(), [b""], [SIGHTING], MOST)[1]
    give(database, WHOLE, PLATE, PLACE, generation=2, start=2)
    after = keys.seal(layers(), [b""], [SIGHTING], MOST)[1]
    # One that learns of the second alone opens nothing from before.
    GroupKeys(database, WRAPPING).destroy([(PLATE, 1), (PLACE, 1)])
    assert open_keys(database).open(layers(), [*before, *after]) == [CLOSED, SIGHTING]


def test_what_has_no_key_is_no_record_and_what_is_not_sealed_is_forged(database: Database) -> None:
    give(database, WHOLE, PLATE, PLACE)
    (sealed,) = open_keys(database).seal(layers(), [b""], [SIGHTING], MOST)[1]
    stranger = open_keys(database, None)
    assert stranger.open(layers(), [sealed, None]) == [CLOSED, None]
    whole = EventLayout(WHOLE, by_attributes=False)
    elsewhere = Layers("u", ATTRIBUTES, shredded=False)
    for place, value in (
        (layers(), SIGHTING), (layers(whole), sealed), (elsewhere, sealed),
        (layers(), sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ):  # fmt: skip
        assert open_keys(database).open(place, [value]) == [FORGED]


def test_what_cannot_be_sealed_says_nothing(database: Database) -> None:
    give(database, WHOLE, PLATE, PLACE)
    told = (b'{"colour":"red"}', b"no object", b'{"plate":"%b"}' % (b"x" * MOST))
    _, values = open_keys(database).seal(layers(), [b""] * 3, told, MOST)
    assert all(it.startswith(UNREAD) and len(it) < 64 for it in values)
    assert open_keys(database).open(layers(), values) == list(values)
    # And without any key nothing is written in clear either.
    lost = EventLayout(UUID(int=9), by_attributes=False)
    assert b"AB12" not in open_keys(database).seal(layers(lost), [b""], [SIGHTING], MOST)[1][0]


def test_tasks_get_an_address_without_the_domains_own_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    with Database.open(url) as database:
        give(database, WHOLE, PLATE, PLACE)
        sealed = open_keys(database).seal(layers(), [b""], [SIGHTING], MOST)[1]
    packed = pickle.dumps(KeyAddress(url, None, WRAPPING))
    assert SECRET not in packed
    address = pickle.loads(packed)  # noqa: S301 - made above
    assert address.open(layers(), list(sealed)) == [SIGHTING]
    assert WRAPPING.key.hex() not in repr(address)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordKeys]:
    path = tmp_path_factory.mktemp("keys") / "penstock.db"
    with Database.open(f"sqlite:///{path}") as database:
        give(database, WHOLE, PLATE, PLACE)
        yield open_keys(database)


@given(fields=st.dictionaries(st.sampled_from(["plate", "place"]), st.text(), min_size=1))
def test_what_is_sealed_opens_as_it_was(shared: RecordKeys, fields: dict[str, str]) -> None:
    value = json.dumps(fields).encode()
    _, sealed = shared.seal(layers(), [b""], [value], MOST)
    (opened,) = shared.open(layers(), list(sealed))
    assert opened is not None
    assert json.loads(opened) == fields
