"""The gateway's own connection: messages that wait for the broker, and one it cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.components import MosquittoServer, processes
from penstock.gateway.broker import BrokerAddress
from penstock.gateway.publishing.publisher import Publisher
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (nobody sets an event)
            await asyncio.sleep(0.01)


def test_what_the_broker_has_not_confirmed_is_sent_when_it_is_back(tmp_path: Path) -> None:
    port = processes.free_port()
    broker = MosquittoServer(tmp_path, port=port)
    done: list[int] = []

    async def run() -> None:
        publisher = Publisher(BrokerAddress("127.0.0.1", port))
        task = asyncio.create_task(publisher.run())
        for number in range(30):
            publisher.send(f"t/{number}", b"x", b"", partial(done.append, number))
        await asyncio.sleep(0.3)
        assert done == []
        await asyncio.to_thread(broker.start)
        await until(lambda: len(done) == 30)
        await asyncio.to_thread(broker.stop)
        publisher.send("t/30", b"y", b"", lambda: done.append(30), retain=True)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(broker.start)
        await until(lambda: len(done) == 31)
        await publisher.finish(1)
        task.cancel()

    try:
        asyncio.run(run())
        with RawClient(port) as reader:
            reader.connect("reader")
            reader.subscribe("t/#")
            assert reader.texts(1) == [("t/30", b"y")]
    finally:
        broker.stop()
    assert sorted(done) == list(range(31))
