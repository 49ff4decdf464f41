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
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.raw import RawClient

pytest_plugins = ("tests.support.gateway.fixtures",)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (nobody sets an event)
            await asyncio.sleep(0.01)


@pytest.mark.needs("mosquitto")
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


@BROKERS
def test_no_more_are_unconfirmed_than_the_broker_takes(broker: AnyBroker) -> None:
    """HiveMQ takes 10 and ends the connection that sends more."""
    done: list[int] = []

    async def run() -> None:
        publisher = Publisher(BrokerAddress("127.0.0.1", broker.port))
        for number in range(500):
            publisher.send("much", b"%d" % number, b"", partial(done.append, number))
        task = asyncio.create_task(publisher.run())
        await until(lambda: len(done) == 500)
        task.cancel()

    with RawClient(broker.port) as reader:
        reader.connect("reader-of-much")
        reader.subscribe("much", qos=1)
        asyncio.run(run())
        assert [it.payload for it in reader.messages(500)] == [b"%d" % n for n in range(500)]


@BROKERS
def test_one_on_which_the_broker_chokes_is_given_up_alone(
    broker: AnyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers end a connection that publishes a control character in a topic."""
    monkeypatch.setattr("penstock.gateway.publishing.publisher.TRIES", 3)
    done: list[int] = []

    async def run() -> None:
        publisher = Publisher(BrokerAddress("127.0.0.1", broker.port))
        for number in range(9):
            topic = "choke/\x01" if number == 4 else f"choke/{number}"
            publisher.send(topic, b"x", b"", partial(done.append, number))
        task = asyncio.create_task(publisher.run())
        await until(lambda: len(done) == 9)
        task.cancel()

    with RawClient(broker.port) as reader:
        reader.connect("reader-of-rest")
        reader.subscribe("choke/+", qos=1)
        asyncio.run(run())
        assert {it.topic for it in reader.messages(8)} == {
            f"choke/{number}" for number in range(9) if number != 4
        }
    assert sorted(done) == list(range(9))
