"""How a gateway keeps up with the definitions, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.gateway.authorization.rules import Rules
from penstock.gateway.background import Background
from penstock.gateway.recording.topic_mapping import TopicMappings
from penstock.gateway.service.definition_feed import DefinitionFeed
from penstock.model.document import Document, Key
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.documents import Snapshot, Update
from penstock.store.definitions.history import Definitions
from penstock.store.follower import StaleError, Status
from tests.support.gateway.replication import until
from tests.support.store.installation import FileStore


class ByHand:
    """A follower that knows what it is told, and may find its lease run out at any look."""

    lease = 0.2

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.runs_out = 0
        self.looks = 0

    def status(self) -> Status:
        return Status(self.snapshot.epoch, 0.0, is_fresh=True, trouble=None)

    def current(self) -> Snapshot:
        self.looks += 1
        if self.runs_out:
            self.runs_out -= 1
            raise StaleError("the lease ran out between two looks")
        return self.snapshot


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def definitions(store: FileStore) -> Iterator[CheckedDefinitions]:
    with Database.open(store.url) as database:
        yield CheckedDefinitions(Definitions(database))


class Feed:
    """A feed on a real store, with nobody connected."""

    def __init__(self, definitions: CheckedDefinitions) -> None:
        self.definitions = definitions
        self.follower = ByHand(definitions.definitions.snapshot())
        self.rules = Rules(PurposeSettings(), open_mode=True)
        self.rules.take(self.follower.snapshot, self.follower.snapshot.documents)
        self.background = Background()
        clients = SimpleNamespace(get=lambda _: None, opened=list, tell_fresh=lambda: None)
        state = SimpleNamespace(follow=lambda _: None, set_back=lambda _: None)
        self.feed = DefinitionFeed(
            definitions,
            cast("Any", self.follower),
            rules=self.rules,
            follow_program=lambda _: None,
            mappings=TopicMappings(),
            clients=cast("Any", clients),
            revocation=cast("Any", SimpleNamespace(take=lambda _: None)),
            state=cast("Any", state),
            lifecycle=cast("Any", SimpleNamespace()),
            background=self.background,
        )

    async def reserve(self, topic: str) -> None:
        """Do what a command does."""
        document = Document("reservation", topic, {"allow": ["care"]})
        wanted: dict[Key, Document | None] = {document.key: document}
        await self.feed.edit(lambda _: dict(wanted), actor="ada", reason="", operation="reserve")

    def reserved(self) -> set[str]:
        assert self.rules.snapshot is not None
        return {key.name for key in self.rules.snapshot.documents}


def test_a_lease_that_runs_out_between_two_looks_is_looked_at_again(
    definitions: CheckedDefinitions,
) -> None:
    async def run() -> None:
        feed = Feed(definitions)
        feed.feed._look_at_lease()
        assert feed.rules.fresh_until > 0
        feed.follower.runs_out = 1
        feed.background.start(feed.feed.watch_lease())
        await until(lambda: not feed.follower.runs_out)
        assert feed.rules.fresh_until == 0.0, "who cannot know denies"
        seen = feed.follower.looks
        await until(lambda: feed.follower.looks > seen and feed.rules.fresh_until > 0)
        await feed.background.cancel()

    asyncio.run(run())


def test_a_late_update_of_another_history_does_not_undo_a_command(
    definitions: CheckedDefinitions,
) -> None:
    async def run() -> None:
        feed = Feed(definitions)
        await feed.reserve("a")
        late = definitions.definitions.snapshot()
        await feed.reserve("b")
        await feed.reserve("c")
        # The follower held something else, and read the store before the last two commands.
        await feed.feed._take(Update(late, frozenset(late.documents), is_other_history=True))
        assert feed.reserved() == {"a", "b", "c"}
        other = Snapshot(1, "another", {})
        await feed.feed._take(Update(other, frozenset(), is_other_history=True))
        assert feed.reserved() == set()

    asyncio.run(run())


def test_a_command_on_a_store_that_was_set_back_holds_at_once(
    store: FileStore, definitions: CheckedDefinitions
) -> None:
    async def run() -> None:
        feed = Feed(definitions)
        await feed.reserve("a")
        store.copy()
        for topic in ("b", "c", "d"):
            await feed.reserve(topic)
        store.replace()
        # The follower has not noticed yet; what is held has a higher epoch than the command makes.
        await feed.reserve("e")
        assert feed.reserved() == {"a", "e"}

    asyncio.run(run())


def test_a_command_that_the_follower_brought_sooner_is_not_taken_twice(
    definitions: CheckedDefinitions,
) -> None:
    async def run() -> None:
        feed = Feed(definitions)
        edit = definitions.edit

        def slow(*arguments: Any, **named: Any) -> Any:
            change = edit(*arguments, **named)
            later = Document("reservation", "later", {"allow": ["care"]})
            definitions.apply([later], actor="other")
            snapshot = definitions.definitions.snapshot()
            feed.rules.take(snapshot, snapshot.documents)
            return change

        feed.definitions.edit = slow  # type: ignore[method-assign]
        await feed.reserve("a")
        assert feed.reserved() == {"a", "later"}

    asyncio.run(run())
