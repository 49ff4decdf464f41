from __future__ import annotations

import asyncio

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion

from penstock.client import AsyncPurposeClient, NoAnswerError, RefusedError
from penstock.mqtt import Publish, Subscribe, Unsubscribe
from tests.support.mqtt.tap import Tap

pytestmark = pytest.mark.needs("mosquitto")


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_every_verb(tap: Tap, version: ProtocolVersion, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> bytes:
        async with aiomqtt.Client("127.0.0.1", tap.port, protocol=version) as wrapped:
            client = AsyncPurposeClient(wrapped)
            await client.reserve("home/#", aip=["operational"], pip=["operational/x"])
            await client.release("home/#")
            await client.presubscribe("meter", "home/#", "operational")
            await client.set("filter_hybrid", value=True)
            await client.clear()
            await client.reset()
            await client.persist()
            await client.reload()
            await client.subscribe_with_purpose("home/#", "operational", 1)
            await client.unsubscribe_with_purpose("home/#", "operational")
            await client.subscribe("plain", 1)
            await client.send("plain", b"1", qos=1)
            async for message in client.messages:
                return bytes(message.payload)
        raise AssertionError("no message came")

    assert asyncio.run(use()) == b"1"
    topics = [packet.topic for packet in tap.sent(Publish, 9)]
    assert topics == [
        "!RESERVE/home/HASH{operational|operational/x}",
        "!RESERVE/home/HASH{}",
        "!PBAC/PRESUB/meter/home/HASH{operational}",
        "!PBAC/SET/filter_hybrid",
        "!PBAC/CLEAR",
        "!PBAC/RESET",
        "!PBAC/PERSIST",
        "!PBAC/RELOAD",
        "plain",
    ]
    first = tap.sent(Subscribe)[0]
    (end,) = tap.sent(Unsubscribe)
    if version is ProtocolVersion.V5:
        assert first.subscriptions[0].filter == end.filters[0] == "home/#"
        assert first.properties.user == (("purpose-ap", "operational"),)
    else:
        assert first.subscriptions[0].filter == end.filters[0] == "!AP/home/HASH{operational}"
    # aiomqtt complains of acknowledgements that it does not know.
    assert "Unexpected message ID" not in caplog.text


def test_a_refusal_is_raised_where_the_verb_is_awaited(
    tap: Tap, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(data: bytes) -> bytes:
        if data[0] == 0x90:
            return data[:-1] + b"\x87"
        if data[0] == 0x40:
            return b"\x40\x03" + data[2:4] + b"\x87"
        return data

    async def use() -> None:
        async with aiomqtt.Client("127.0.0.1", tap.port, protocol=ProtocolVersion.V5) as wrapped:
            client = AsyncPurposeClient(wrapped)
            tap.answer = refuse
            with pytest.raises(RefusedError, match="'cars/#' for the purpose 'advertising'"):
                await client.subscribe_with_purpose("cars/#", "advertising")
            with pytest.raises(RefusedError, match="reservation of 'cars/#' was refused"):
                await client.reserve("cars/#", ["billing"])
            with pytest.raises(RefusedError, match="message to 'cars/1' was refused: code 0x87"):
                await client.send("cars/1", b"", qos=1)

    asyncio.run(use())
    assert "refused" not in caplog.text


def test_an_answer_that_does_not_come_is_an_error(tap: Tap) -> None:
    async def use() -> None:
        async with aiomqtt.Client("127.0.0.1", tap.port) as wrapped:
            client = AsyncPurposeClient(wrapped, timeout=0.2)
            tap.answer = lambda data: b"" if data[0] == 0x90 else data
            with pytest.raises(NoAnswerError, match=r"subscription to 'a' .* within 0\.2 s"):
                await client.subscribe_with_purpose("a", "x")

    asyncio.run(use())
