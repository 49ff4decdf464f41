"""Publish lanes before real brokers: nothing changes for clients, and faults stay apart."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, Publish, RequestedSubscription, Will
from penstock.telemetry.metrics import REGISTRY
from tests.support.gateway.clients import VERSIONS, Make, make_clients
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import RawClient

pytest_plugins = ("tests.support.gateway.fixtures",)
NO_LOCAL = SubscribeOptions(qos=0, noLocal=True)


@pytest.fixture(scope="module")
def gateway(broker: AnyBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port, {"lanes": 2}) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    yield from make_clients(gateway.port)


def value(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


class Paho:
    """A client of the Paho library with a mailbox."""

    def __init__(self, port: int, client_id: str, version: int) -> None:
        self.box: queue.Queue[bytes] = queue.Queue()
        self._subscribed: queue.Queue[int] = queue.Queue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion(version)
        )
        self.client.on_message = lambda _, __, message: self.box.put(bytes(message.payload))
        self.client.on_subscribe = lambda _, __, mid, *___: self._subscribed.put(mid)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def subscribe(self, topic: str, options: SubscribeOptions | None = None) -> None:
        self.client.subscribe(topic, options=options)
        self._subscribed.get(timeout=10)

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def meet(gateway: GatewayThread) -> Iterator[Callable[[str, int], Paho]]:
    people: list[Paho] = []

    def join(name: str, version: int) -> Paho:
        people.append(Paho(gateway.port, f"{name}-{uuid.uuid4().hex[:6]}", version))
        return people[-1]

    yield join
    for person in people:
        person.leave()


@BROKERS
class TestBeforeEachBroker:
    def test_no_local_is_kept(self, meet: Callable[[str, int], Paho], topic: str) -> None:
        """A client of MQTT 5 gets others' messages only; one of 3.1.1 gets its own, too."""
        new, old = meet("new", V5), meet("old", V3)
        for number in range(5):  # before it subscribes its messages take a lane
            new.client.publish(topic, b"early %d" % number)
        new.subscribe(topic, NO_LOCAL)
        old.subscribe(topic)
        for number in range(20):
            new.client.publish(topic, b"new %d" % number)
            old.client.publish(topic, b"old %d" % number)
        for person in (new, old):
            person.client.publish(topic, b"end")
        mine = [b"old %d" % number for number in range(20)]
        others = [b"new %d" % number for number in range(20)]
        assert _until(new.box, 1) == [*mine, b"end"]
        got = _until(old.box, 2)
        assert [it for it in got if it.startswith(b"new")] == others
        assert [it for it in got if it.startswith(b"old")] == mine

    def test_a_retained_message_of_its_own_is_no_exception(self, make: Make, topic: str) -> None:
        client, other = make(), make()
        client.publish(topic, b"mine", retain=True)
        client.subscribe(RequestedSubscription(topic, 1, no_local=True))
        client.settle()
        assert client.texts(quiet=0.2) == []
        other.subscribe(topic)
        assert other.texts(1, quiet=0) == [(topic, b"mine")]

    def test_what_a_broker_may_close_over_ends_no_lane(
        self, gateway: GatewayThread, make: Make, topic: str
    ) -> None:
        """Odd texts, and what a broker has for itself, cost their own client at most."""
        before = value("penstock_gateway_lanes_lost_total")
        reader, steady = make(), make()
        reader.subscribe(topic)
        for odd in (
            {"topic": f"{topic}/\x01"},
            {"topic": f"{topic}/\ufffe"},
            {"topic": "$odd/topic"},
            {"topic": "/".join("x" * 150)},
            {"topic": topic, "user": (("a", "\x02"),)},
            {"topic": topic, "content_type": "\x85"},
            {"topic": topic, "payload_format": 1, "payload": b"\xff"},
        ):
            with RawClient(gateway.port) as client:
                client.connect()
                client.publish(str(odd.pop("topic")), **odd)
                with suppress(OSError):
                    client.publish("another/topic", b"x" * 900_000)
            steady.publish(topic, b"steady")
        reader.subscribe(f"{topic}/done")
        steady.settle()
        got = [payload for _, payload in reader.texts(7)]
        assert got.count(b"steady") == 7
        assert value("penstock_gateway_lanes_lost_total") == before


def _until(box: queue.Queue[bytes], ends: int) -> list[bytes]:
    """Return what arrives up to so many ends."""
    got: list[bytes] = []
    while got.count(b"end") < ends:
        got.append(box.get(timeout=10))
    return got


# HiveMQ CE deals with a client's PUBLISH and SUBSCRIBE in any order, and answers a PINGREQ at once:
# before it, these hold neither with lanes nor, but for wills, without.


@pytest.mark.needs("mosquitto")
def test_what_is_published_before_and_after_subscribing(make: Make, topic: str) -> None:
    """A retained message is there for the subscription behind it, and later ones come."""
    client = make()
    for number in range(10):
        client.publish(f"{topic}/{number}", b"early", retain=True)
        client.publish(f"{topic}/{number}", b"gone")
        client.subscribe(f"{topic}/{number}")
        client.publish(f"{topic}/{number}", b"late")
        expected = [(f"{topic}/{number}", b"early"), (f"{topic}/{number}", b"late")]
        assert client.texts(2, quiet=0) == expected


@pytest.mark.needs("mosquitto")
@VERSIONS
def test_messages_of_both_qualities_keep_their_order(
    gateway: GatewayThread, make: Make, topic: str, version: int
) -> None:
    reader = make()
    reader.subscribe(topic, qos=0)
    with RawClient(gateway.port, version=version) as writer:
        writer.connect()
        sent = []
        for number in range(60):
            qos = 1 if number % 7 == 3 else 0
            sent.append(b"%d" % number)
            packet_id = writer.next_id() if qos else 0
            writer.send(Publish.of(topic, sent[-1], qos=qos, packet_id=packet_id))
        assert [payload for _, payload in reader.texts(60)] == sent


@pytest.mark.needs("mosquitto")
def test_a_will_follows_what_was_published(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader = make()
    reader.subscribe(topic)
    for number in range(5):
        client = RawClient(gateway.port)
        client.connect(will=Will(topic, b"offline %d" % number, qos=0))
        for _ in range(20):
            client.publish(topic, b"online")
        client.vanish()
        got = [payload for _, payload in reader.texts(21, quiet=0)]
        assert got == [b"online"] * 20 + [b"offline %d" % number]


@pytest.mark.needs("mosquitto")
def test_a_lost_lane_is_reopened_and_its_losses_are_counted(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    """Nothing out of place arrives, and what does not arrive is counted."""
    with run_gateway(tmp_path, mosquitto.port, {"lanes": 1}) as running:
        reader, writer = RawClient(running.port), RawClient(running.port)
        reader.connect()
        writer.connect()
        reader.subscribe("t")
        before = value("penstock_gateway_lane_messages_lost_total")
        lane = running.gateway.lanes.of("")
        assert lane is not None
        count = 300
        for number in range(count):
            writer.publish("t", b"%d" % number)
            if number == 100:
                running.do(lane.drop)
        writer.settle()
        reader.settle()
        got = [int(payload) for _, payload in reader.texts(quiet=0.2)]
        assert got == sorted(set(got))
        lost = value("penstock_gateway_lane_messages_lost_total") - before
        # What was written and not confirmed may have arrived nevertheless.
        assert count - len(got) <= lost <= count
        assert value("penstock_gateway_lanes_lost_total") > 0


@pytest.mark.needs("mosquitto")
def test_after_the_broker_was_restarted_clients_publish_again(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running:
        client = RawClient(running.port)
        client.connect()
        client.publish("t", b"1")
        mosquitto.stop()
        client.wait_closed()
        mosquitto.start()
        wait_until(lambda: _comes(running.port))
        with RawClient(running.port) as again:
            again.connect()
            again.subscribe("t")
            again.publish("t", b"2")
            assert again.texts(1, quiet=0) == [("t", b"2")]


def _comes(port: int) -> bool:
    with RawClient(port) as client:
        return client.connect().reason == 0


@pytest.mark.needs("mosquitto")
def test_where_the_broker_knows_clients_there_are_no_lanes(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    settings = {"lanes": 4, "authentication": {"relay": True, "anonymous": True}}
    with run_gateway(tmp_path, mosquitto.port, settings) as running:
        assert running.gateway.lanes.of("any") is None


@pytest.mark.needs("mosquitto")
def test_a_takeover_lets_nothing_of_the_old_connection_pass_later(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with (
        run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running,
        RawClient(running.port) as reader,
    ):
        reader.connect()
        reader.subscribe("t")
        for _ in range(10):
            old = RawClient(running.port)
            old.connect("moves")
            for number in range(50):
                old.publish("t", b"old %d" % number)
            new = RawClient(running.port)
            new.connect("moves")
            new.publish("t", b"new")
            with suppress(OSError):
                old.publish("t", b"late")
            new.publish("t", b"last")
            new.settle()
            reader.settle()
            got = [payload for _, payload in reader.texts(quiet=0)]
            assert got[got.index(b"new") :] == [b"new", b"last"], got
            new.close()
            old.vanish()
