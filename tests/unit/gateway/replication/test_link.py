from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.gateway.replication import link as module
from penstock.gateway.replication.link import Link, ReplicationTerms
from penstock.gateway.replication.protocol import ChannelError, Leave, Message, Ping, derive_secret
from tests.support.gateway.memory_network import MemoryTransport
from tests.support.gateway.replication import TERMS


class End:
    """One end of a link, and what it noted."""

    def __init__(self, terms: ReplicationTerms, *, caller: bool, refuses: bool = False) -> None:
        self.opened = 0
        self.heard: list[Message] = []
        self.ended: list[str] = []
        self._refuses = refuses
        self.link = Link(terms, caller=caller, opened=self._open, heard=self._hear, ended=self._end)
        self.transport = MemoryTransport(self.link)

    def _open(self, link: Link) -> None:
        assert link is self.link
        self.opened += 1

    def _hear(self, link: Link, message: Message) -> None:
        assert link is self.link
        self.heard.append(message)
        if self._refuses:
            raise ChannelError("refused")

    def _end(self, link: Link, why: str) -> None:
        assert link is self.link
        self.ended.append(why)


def connect(one: End, other: End) -> None:
    one.transport.other, other.transport.other = other.transport, one.transport
    for it in (one, other):
        it.link.connection_made(it.transport)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_both_ends_open_and_messages_arrive_in_order() -> None:
    async def work() -> None:
        caller, server = End(TERMS, caller=True), End(TERMS, caller=False)
        connect(caller, server)
        await settle()
        assert (caller.opened, server.opened) == (1, 1)
        for number in range(3):
            caller.link.send(Ping(number))
        await settle()
        assert server.heard == [Ping(0), Ping(1), Ping(2)]
        # What was sent before the end still arrives, and nothing after it.
        caller.link.send(Leave())
        caller.link.close("the test ends")
        caller.link.send(Ping(9))
        await settle()
        assert server.heard[-1] == Leave()
        assert caller.ended == ["the test ends"]
        assert server.ended == ["the connection broke"]

    asyncio.run(work())


def test_a_gateway_with_another_secret_does_not_get_in() -> None:
    async def work() -> None:
        stranger = replace(TERMS, secret=derive_secret(b"x" * 32))
        caller, server = End(stranger, caller=True), End(TERMS, caller=False)
        connect(caller, server)
        await settle()
        assert (caller.opened, server.opened) == (0, 0)
        assert server.ended == ["the other gateway does not have the same secret"]
        assert len(caller.ended) == 1

    asyncio.run(work())


def test_a_violation_of_the_protocol_ends_the_connection_once() -> None:
    async def work() -> None:
        caller = End(TERMS, caller=True)
        server = End(TERMS, caller=False, refuses=True)
        connect(caller, server)
        await settle()
        caller.link.send(Ping(1))
        caller.link.send(Ping(2))
        await settle()
        assert server.heard == [Ping(1)]
        assert server.ended == ["refused"]

    asyncio.run(work())


def test_who_does_not_greet_in_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        silent = End(TERMS, caller=False)
        silent.link.connection_made(silent.transport)
        await asyncio.sleep(0.05)
        assert silent.ended == ["it did not greet in time"]

    monkeypatch.setattr(module, "GREETING_SECONDS", 0.01)
    asyncio.run(work())
