"""The definitions against a naive model: a list that holds the whole set of every epoch."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError, UsageError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import Delete, Edit, Put, Snapshot, edits_between
from penstock.store.definitions.history import Definitions
from penstock.store.schema import epochs, revisions
from tests.support.scale import scaled

Set = dict[Key, str]  # canonical JSON by key

KEYS = [Key(kind, name) for kind in ("topic", "view ä") for name in ("a", "b/c", "😀 d")]
keys = st.sampled_from(KEYS)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
bodies = st.dictionaries(
    st.sampled_from(["x", "y", "é"]),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    max_size=2,
)
puts = st.builds(lambda key, body: Put(Document(key.kind, key.name, body)), keys, bodies)
edits = st.one_of(puts, puts, st.builds(Delete, keys))
changes = st.tuples(st.just("change"), st.lists(edits, max_size=5))
rollbacks = st.tuples(st.just("rollback"), st.integers(-1, 12), st.none() | keys)
steps = st.one_of(changes, changes, rollbacks, st.just(("look",)))


class Model:
    """What the store should hold, told in the plainest way."""

    def __init__(self) -> None:
        self.sets: list[Set] = [{}]

    def change(self, wanted: list[Edit]) -> bool:
        after = dict(self.sets[-1])
        for edit in wanted:
            after.pop(edit.key, None)
            if isinstance(edit, Put):
                body = edit.document.body
                text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                after[edit.key] = text
        if after != self.sets[-1]:
            self.sets.append(after)
            return True
        return False

    def rollback(self, epoch: int, key: Key | None) -> None:
        after = dict(self.sets[epoch])
        if key is not None:
            after = dict(self.sets[-1])
            after.pop(key, None)
            if key in self.sets[epoch]:
                after[key] = self.sets[epoch][key]
        if after != self.sets[-1]:
            self.sets.append(after)

    def history(self, key: Key) -> list[tuple[int, str | None]]:
        held = [found.get(key) for found in self.sets]
        turns = [at for at in range(1, len(held)) if held[at] != held[at - 1]]
        return [(epoch, held[epoch]) for epoch in reversed(turns)]


def plain(snapshot: Snapshot) -> Set:
    return {key: document.canonical() for key, document in snapshot.documents.items()}


def empty(database: Database) -> None:
    """Make the store as good as new; who held the old one must notice by the mark."""
    with database.write("definitions") as connection:
        connection.execute(revisions.delete())
        connection.execute(epochs.delete().where(epochs.c.epoch > 0))
        connection.execute(epochs.update().values(mark=uuid.uuid4().hex))


def step(definitions: Definitions, model: Model, what: tuple[Any, ...]) -> None:
    if what[0] == "change":
        wanted: list[Edit] = what[1]

        def edit(snapshot: Snapshot) -> list[Edit]:
            assert (snapshot.epoch, plain(snapshot)) == (len(model.sets) - 1, model.sets[-1])
            return wanted

        if len({edit.key for edit in wanted}) < len(wanted):
            with pytest.raises(InvalidError, match="the change"):
                definitions.change(edit, actor="ann", reason="")
            return
        assert definitions.change(edit, actor="ann", reason="").is_empty != model.change(wanted)
    elif what[0] == "rollback":
        _, epoch, key = what
        chosen = None if key is None else [key]

        def back(now: Snapshot) -> list[Edit]:
            then = definitions.snapshot_at(epoch)
            return edits_between(now.documents, then.documents, chosen)

        if not 0 <= epoch < len(model.sets):
            with pytest.raises(UsageError):
                definitions.change(back, actor="ann", reason="")
            return
        definitions.change(back, actor="ann", reason="")
        model.rollback(epoch, key)


def compare(definitions: Definitions, model: Model) -> None:
    for epoch, expected in enumerate(model.sets):
        snapshot = definitions.snapshot_at(epoch)
        assert (snapshot.epoch, plain(snapshot)) == (epoch, expected)
    for key in KEYS:
        found = [
            (revision.epoch, revision.document and revision.document.canonical())
            for revision in definitions.history(key)
        ]
        assert found == model.history(key)
    listed = definitions.epochs()
    assert [epoch.epoch for epoch in listed] == list(reversed(range(len(model.sets))))
    changed = {
        epoch: sum(1 for key in KEYS if epoch in dict(model.history(key)))
        for epoch in range(len(model.sets))
    }
    assert {epoch.epoch: epoch.changes for epoch in listed} == changed


def run(database: Database, seldom: Definitions, script: list[tuple[Any, ...]]) -> None:
    """Play the script; `seldom` lives through all scripts and looks only now and then."""
    empty(database)
    definitions, model = Definitions(database), Model()
    for what in script:
        step(definitions, model, what)
        if what[0] == "look":
            assert plain(seldom.snapshot()) == model.sets[-1]
    for reader in (definitions, seldom, Definitions(database)):
        snapshot = reader.snapshot()
        assert (snapshot.epoch, plain(snapshot)) == (len(model.sets) - 1, model.sets[-1])
    compare(definitions, model)


scripts = st.lists(steps, max_size=12)


def test_sqlite_agrees_with_the_model(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        seldom = Definitions(database)

        @settings(max_examples=scaled(400))
        @given(scripts)
        def check(script: list[tuple[Any, ...]]) -> None:
            run(database, seldom, script)

        check()


@pytest.mark.needs("postgresql")
def test_postgresql_agrees_with_the_model(postgres_url: str) -> None:
    with Database.open(postgres_url) as database:
        seldom = Definitions(database)

        @settings(max_examples=scaled(80))
        @given(scripts)
        def check(script: list[tuple[Any, ...]]) -> None:
            run(database, seldom, script)

        check()
