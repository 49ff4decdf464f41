from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from penstock.gateway.authorization.rules import Rules
from penstock.gateway.background import SessionWriter
from penstock.gateway.connection.authentication import RefusedError
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.context import Cause
from penstock.gateway.counters import Counters
from penstock.gateway.session import Session
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.sessions import Leave, SessionChange
from tests.support.gateway.socketless import Socketless


class Client:
    """The part of a connection that the registry knows."""

    def __init__(self, registry: ClientRegistry, client_id: str = "me", user: str = "u") -> None:
        self.registry = registry
        self.session = Session(client_id, user, 60)
        self.session.stored = True
        self.open = True
        self.ended: list[Cause] = []

    def end(self, cause: Cause) -> None:
        self.ended.append(cause)
        self.registry.release(self.seen)

    @property
    def seen(self) -> ClientConnection:
        return cast("ClientConnection", self)


class Stored:
    """Takes note of what would be stored."""

    def __init__(self) -> None:
        self.changes: list[SessionChange] = []

    async def __call__(self, changes: list[SessionChange]) -> None:
        self.changes += changes


def run(trial: Callable[[ClientRegistry, Stored], Coroutine[Any, Any, None]]) -> None:
    async def start() -> None:
        stored = Stored()
        writer: SessionWriter[SessionChange] = SessionWriter(stored)
        rules = Rules(PurposeSettings())
        await trial(ClientRegistry(rules, Counters(), writer), stored)

    asyncio.run(start())


def test_who_comes_later_takes_the_identifier_over() -> None:
    async def trial(registry: ClientRegistry, stored: Stored) -> None:
        old, new = Client(registry), Client(registry)
        registry.take_over(old.seen)
        registry.take_over(new.seen)
        assert old.ended == [Cause.TAKEOVER]
        assert registry["me"] is new.seen
        await asyncio.sleep(0)
        assert stored.changes == [Leave("me", old.session.holder, 60)]
        registry.release(new.seen)
        assert "me" not in registry
        await asyncio.sleep(0)
        assert stored.changes[1:] == [Leave("me", new.session.holder, 60)]

    run(trial)


def test_nobody_takes_the_identifier_of_another_principal() -> None:
    async def trial(registry: ClientRegistry, stored: Stored) -> None:
        old, new = Client(registry), Client(registry, user="another")
        registry.take_over(old.seen)
        with pytest.raises(RefusedError, match="in use by somebody else"):
            registry.take_over(new.seen)
        assert registry.get("me") is old.seen
        assert (old.ended, stored.changes) == ([], [])

    run(trial)


def test_only_those_that_are_let_in_are_walked_over() -> None:
    async def trial(registry: ClientRegistry, stored: Stored) -> None:
        del stored
        one, two = Client(registry, "one"), Client(registry, "two")
        two.open = False
        registry.take_over(one.seen)
        registry.take_over(two.seen)
        assert list(registry.opened()) == [one.seen]
        assert list(registry.sessions()) == [one.session]

    run(trial)


def test_a_drain_ends_all_waits_for_them_and_lets_nobody_in() -> None:
    async def trial(registry: ClientRegistry, stored: Stored) -> None:
        del stored
        client = Client(registry)
        registry.arrive(client.seen)
        drained = asyncio.ensure_future(registry.drain(10))
        await asyncio.sleep(0)
        assert client.ended == [Cause.DRAIN]
        assert not registry.arrive(Client(registry).seen)
        assert not drained.done()
        registry.leave(client.seen)
        await drained

    run(trial)


def test_who_is_to_connect_again_leaves_the_broker_in_order() -> None:
    async def trial() -> None:
        made = Socketless()
        made.open()
        made.registry.ask_to_reconnect("me")
        assert [it.packet_type.name for it in made.broker.taken()] == ["DISCONNECT"]
        assert [it.packet_type.name for it in made.line.taken()] == ["DISCONNECT"]
        assert "me" not in made.registry

    asyncio.run(trial())
