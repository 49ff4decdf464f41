"""The client library against a real gateway in front of a real broker."""

from __future__ import annotations

import asyncio
import queue
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import aiomqtt
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from penstock.client import AsyncPurposeClient, PurposeClient, Purposes, RefusedError
from penstock.components import MosquittoServer
from penstock_lab.bench.gateway.server import GatewayServer

V3, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
END = "notice/end"
pytestmark = pytest.mark.needs("mosquitto")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    folder: Path = tmp_path_factory.mktemp("client-gateway")
    with (
        MosquittoServer(folder / "broker", persistent=False) as broker,
        GatewayServer(folder / "gateway", broker.port) as running,
    ):
        yield running


class Person:
    """A client with a mailbox."""

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion) -> None:
        paho = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version)
        self.client = PurposeClient(paho)
        self.client.on_refused = None
        self._box: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.client.on_message = lambda _, __, message: self._box.put(
            (message.topic, bytes(message.payload))
        )
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe_with_purpose(END, "testing", 1).wait()

    def received(self, sender: Person) -> list[tuple[str, bytes]]:
        """Return what has come, up to a message that the sender sends last."""
        mark = uuid.uuid4().bytes
        sender.client.send(END, mark, qos=1).wait()
        found = []
        while (item := self._box.get(timeout=60)) != (END, mark):
            # The marks of others come here too.
            if item[0] != END:
                found.append(item)
        return found

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(params=[V3, V5], ids=["3.1.1", "5"])
def meet(
    gateway: GatewayServer, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Person]]:
    people: list[Person] = []

    def join(name: str) -> Person:
        people.append(Person(gateway.port, name, request.param))
        return people[-1]

    yield join
    people[0].client.reset().wait()
    people[0].client.set("filter_on_subscribe", value=False).wait()
    for person in people:
        person.leave()


Meet = Callable[[str], Person]


def test_messages_reach_compatible_purposes_only(meet: Meet) -> None:
    ada, billing, ads = meet("ada"), meet("billing"), meet("ads")
    ada.client.reserve("car/#", aip=["operational", "ads"], pip=["ads/personal"]).wait()
    billing.client.subscribe_with_purpose("car/+/speed", "operational/billing", qos=1).wait()
    ads.client.subscribe_with_purpose("car/#", "ads/personal", qos=1).wait()
    ada.client.send("car/7/speed", b"47", qos=1).wait()
    assert billing.received(ada) == [("car/7/speed", b"47")]
    assert ads.received(ada) == []
    # She changes her mind.
    ada.client.reserve("car/#", aip=["ads"]).wait()
    ada.client.send("car/7/speed", b"48", qos=1).wait()
    assert billing.received(ada) == []
    assert ads.received(ada) == [("car/7/speed", b"48")]
    ada.client.reserve("car/#").wait()
    ada.client.send("car/7/speed", b"49", qos=1).wait()
    assert (billing.received(ada), ads.received(ada)) == ([], [])
    ada.client.release("car/#").wait()
    ada.client.send("car/7/speed", b"50", qos=1).wait()
    assert billing.received(ada) == ads.received(ada) == [("car/7/speed", b"50")]


def test_a_subscription_ends(meet: Meet) -> None:
    ada, billing = meet("ada"), meet("billing")
    ada.client.reserve("car/#", aip=["operational"]).wait()
    billing.client.subscribe_with_purpose("car/#", "operational", qos=1).wait()
    billing.client.unsubscribe_with_purpose("car/#", "operational").wait()
    ada.client.send("car/7", b"1", qos=1).wait()
    assert billing.received(ada) == []


def test_a_plain_client_is_given_a_purpose(meet: Meet) -> None:
    ada, screen = meet("ada"), meet("screen")
    ada.client.reserve("car/#", aip=["operational"]).wait()
    ada.client.presubscribe("screen", "car/+", "operational").wait()
    screen.client.subscribe("car/+", 1)
    # Its own later packet is answered after the subscription.
    screen.client.send("notice/other", qos=1).wait()
    ada.client.send("car/7", b"1", qos=1).wait()
    assert screen.received(ada) == [("car/7", b"1")]


def test_one_message_has_fewer_purposes_than_its_topic(meet: Meet) -> None:
    ada, billing, ads = meet("ada"), meet("billing"), meet("ads")
    ada.client.reserve("car/#", aip=["operational", "ads"]).wait()
    billing.client.subscribe_with_purpose("car/#", "operational", qos=1).wait()
    ads.client.subscribe_with_purpose("car/#", "ads", qos=1).wait()
    ada.client.send("car/7", b"1", qos=1, purposes=["operational"]).wait()
    ada.client.send("car/7", b"2", qos=1, purposes=["operational", "ads"]).wait()
    ada.client.send("car/7", b"3", qos=1, purposes=["ads"], prohibited=["ads"]).wait()
    ada.client.send("car/7", b"4", qos=1, purposes=[]).wait()
    assert billing.received(ada) == [("car/7", b"1"), ("car/7", b"2")]
    assert ads.received(ada) == [("car/7", b"2")]


def test_a_refused_subscription_says_which(meet: Meet) -> None:
    ada, ads = meet("ada"), meet("ads")
    ada.client.reserve("car/#", aip=["operational"]).wait()
    ada.client.set("filter_on_subscribe", value=True).wait()
    with pytest.raises(RefusedError) as caught:
        ads.client.subscribe_with_purpose("car/7", "ads").wait()
    assert (caught.value.filter, caught.value.purpose) == ("car/7", "ads")
    if ads.client.protocol == V5:
        assert "not for ads" in str(caught.value)
    ads.client.subscribe_with_purpose("car/7", "operational").wait()


def test_questions_are_answered(meet: Meet) -> None:
    ada = meet("ada")
    ada.client.reserve("car/#", aip=["operational"], pip=["operational/spying"]).wait()
    ada.client.reserve("car/+/speed", aip=["ads"]).wait()
    combined = ada.client.combined_reservations("car/7/speed").wait()
    assert combined == Purposes(("ads", "operational"), ("operational/spying",))
    assert ada.client.combined_reservations("bicycle/7").wait() is None
    affected = ada.client.affected_reservations("car/7/#").wait()
    assert affected == {
        "car/#": Purposes(("operational",), ("operational/spying",)),
        "car/+/speed": Purposes(("ads",), ()),
    }
    drawing = ada.client.reservation_tree().wait()
    assert "car" in drawing
    assert "operational/spying" in drawing


def test_unsaved_changes_are_taken_back(meet: Meet) -> None:
    ada = meet("ada")
    ada.client.reserve("car/#", aip=["operational"]).wait()
    ada.client.persist().wait()
    ada.client.set("auto_persist", value=False).wait()
    ada.client.reserve("car/#", aip=["ads"]).wait()
    assert ada.client.combined_reservations("car/7").wait() == Purposes(("ads",), ())
    ada.client.reload().wait()
    assert ada.client.combined_reservations("car/7").wait() == Purposes(("operational",), ())
    ada.client.reserve("car/#", aip=["ads"]).wait()
    ada.client.persist().wait()
    ada.client.reload().wait()
    assert ada.client.combined_reservations("car/7").wait() == Purposes(("ads",), ())
    ada.client.set("auto_persist", value=True).wait()


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_the_asyncio_flavour(gateway: GatewayServer, version: aiomqtt.ProtocolVersion) -> None:
    async def use() -> list[bytes]:
        async with aiomqtt.Client("127.0.0.1", gateway.port, protocol=version) as wrapped:
            client = AsyncPurposeClient(wrapped)
            await client.reserve("ship/#", aip=["operational"])
            assert await client.combined_reservations("ship/1") == Purposes(("operational",), ())
            assert list(await client.affected_reservations("ship/#")) == ["ship/#"]
            assert "ship" in await client.reservation_tree()
            await client.subscribe_with_purpose("ship/1", "operational", qos=1)
            await client.subscribe_with_purpose("ship/2", "ads", qos=1)
            for topic in ("ship/1", "ship/2", "ship/1"):
                await client.send(topic, topic.encode(), qos=1)
            await client.set("filter_hybrid", value=True)
            with pytest.raises(RefusedError, match="'ship/1' for the purpose 'ads' was refused"):
                await client.subscribe_with_purpose("ship/1", "ads")
            await client.reset()
            assert await client.combined_reservations("ship/1") is None
            # Both subscriptions have ended, and the setting holds as it was set.
            await client.send("ship/1", b"to nobody", qos=1)
            await client.subscribe_with_purpose("ship/2", "ads", qos=1)
            await client.set("filter_hybrid", value=False)
            await client.send("ship/2", b"end", qos=1)
            got: list[bytes] = []
            async for message in client.messages:
                got.append(bytes(message.payload))
                if got[-1] == b"end":
                    return got
        raise AssertionError("the last message did not come")

    assert asyncio.run(asyncio.wait_for(use(), 30)) == [b"ship/1", b"ship/1", b"end"]
