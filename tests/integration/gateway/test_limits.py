"""What clients may cost: whoever oversteps is closed or told, and the rest is served."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_websocket

from penstock.components import MosquittoServer
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.mqtt import (
    V3,
    V5,
    Disconnect,
    Pingresp,
    Publish,
    ReasonCode,
    RequestedSubscription,
    Subscribe,
    encode_pubrec,
)
from penstock.mqtt.connect import PINGREQ
from penstock.telemetry import metrics
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

LIMITS = {
    "connections": 40,
    "connections_per_address": 30,
    "connect_timeout": "1s",
    "packet": "64KiB",
    "subscriptions": 5,
    "receive_maximum": 10,
    "queue": "64KiB",
    "stall_timeout": "2s",
    "client_id_bytes": 40,
    "topic_bytes": 200,
    "topic_levels": 8,
    "topic_aliases": 2,
    "keep_alive": "20s",
}


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    folder = tmp_path_factory.mktemp("limited")
    listeners = {"mqtt": {"port": 0}, "web": {"port": 0, "transport": "websocket"}}
    settings = {"limits": LIMITS, "listeners": listeners}
    with run_gateway(folder, broker.port, settings) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    yield from make_clients(gateway.port)


def counted(name: str, **labels: str) -> float:
    return float(metrics.REGISTRY.get_sample_value(name, labels) or 0)


def _waits(client: ClientConnection | None) -> bool:
    """Whether nothing is read from the broker because this client does not read."""
    return (
        client is not None
        and client.upstream is not None
        and "client" in client.upstream.intake.reasons
    )


def test_a_connection_that_says_nothing_is_closed(gateway: GatewayThread) -> None:
    silent = RawClient(gateway.port)
    silent.wait_closed(6)


def test_a_websocket_that_is_never_opened_or_says_nothing_is_closed(
    gateway: GatewayThread,
) -> None:
    port = gateway.running.port("web")
    silent = RawClient(port)
    silent.send_bytes(b"GET /mqtt HTTP/1.1\r\n")
    with connect_websocket(f"ws://127.0.0.1:{port}/mqtt", subprotocols=["mqtt"]) as web:  # type: ignore[list-item]
        silent.wait_closed(6)
        with pytest.raises(ConnectionClosed):
            web.recv(timeout=6)


def test_a_connect_that_comes_byte_by_byte_is_closed(gateway: GatewayThread) -> None:
    """Slowloris: each byte is a sign of life, but the CONNECT must be whole in time."""
    client = RawClient(gateway.port)
    started = time.monotonic()
    with pytest.raises(OSError):  # noqa: PT011, PT012 (whatever the system says, at some byte)
        for byte in b"\x10\xff\x03\x00\x04MQTT\x05" + b"\x00" * 100:
            client.send_bytes(bytes((byte,)))
            time.sleep(0.2)
    assert time.monotonic() - started < 10
    client.vanish()


def test_a_packet_that_is_too_large_is_refused_before_it_is_here(make: Make) -> None:
    client = make()
    client.send_bytes(b"\x30\xff\xff\xff\x7f")
    assert client.expect(Disconnect).reason == ReasonCode.PACKET_TOO_LARGE
    other = make(version=V3)
    other.send_bytes(b"\x30\xff\xff\xff\x7f")
    other.wait_closed()


def test_long_and_deep_topics(make: Make, topic: str) -> None:
    client = make()
    assert client.publish("x" * 300, b"", qos=1).reason == ReasonCode.TOPIC_NAME_INVALID
    assert client.publish("a/" * 10, b"", qos=1).reason == ReasonCode.TOPIC_NAME_INVALID
    answer = client.subscribe("x" * 300, "a/" * 10, topic)
    assert answer.reasons == (0x8F, 0x8F, 2)


def test_too_many_subscriptions(make: Make, topic: str) -> None:
    client = make()
    answer = client.subscribe(*(f"{topic}/{number}" for number in range(7)))
    assert answer.reasons == (2, 2, 2, 2, 2, 0x97, 0x97)
    assert client.unsubscribe(f"{topic}/0").reasons == (0,)
    assert client.subscribe(f"{topic}/9").reasons == (2,)


def test_too_many_connections_from_one_address(gateway: GatewayThread, make: Make) -> None:
    before = gateway.do(lambda: len(gateway.gateway.arrivals))
    held = [make() for _ in range(30 - before)]
    extra = RawClient(gateway.port)
    extra.wait_closed()
    held.pop().close()
    _wait_for_fewer(gateway, 30)
    held.append(make())
    for client in held:
        client.close()
    _wait_for_fewer(gateway, before + 1)


def _wait_for_fewer(gateway: GatewayThread, count: int) -> None:
    deadline = time.monotonic() + 10
    while gateway.do(lambda: len(gateway.gateway.arrivals)) >= count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_silent_client_is_lost_after_one_and_a_half_keep_alives(make: Make) -> None:
    client = make(keep_alive=2)
    started = time.monotonic()
    assert client.expect(Disconnect, 8).reason == ReasonCode.KEEP_ALIVE_TIMEOUT
    assert time.monotonic() - started >= 2.9
    alive = make(keep_alive=2)
    for _ in range(4):
        time.sleep(1)
        alive.send(PINGREQ)
        alive.expect(Pingresp)


@pytest.mark.parametrize(
    ("asked", "told"), [(0, 20), (21, 20), (65_535, 20), (20, None), (5, None)]
)
def test_the_keep_alive_is_limited(gateway: GatewayThread, asked: int, told: int | None) -> None:
    with RawClient(gateway.port) as client:
        assert client.connect("x", keep_alive=asked).properties.server_keep_alive == told


def test_clients_are_told_the_limits_that_are_set(gateway: GatewayThread) -> None:
    with RawClient(gateway.port) as client:
        told = client.connect("x" * 40).properties
    assert dict(told.user) == {
        "penstock-client-id-bytes": "40",
        "penstock-topic-bytes": "200",
        "penstock-topic-levels": "8",
    }
    assert (told.receive_maximum, told.topic_alias_maximum) == (10, 2)
    with RawClient(gateway.port) as small:
        assert small.connect("x", maximum_packet_size=60).properties.user == ()
    with RawClient(gateway.port) as client:
        refused = client.connect("x" * 41)
    assert refused.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert "41 bytes; at most 40" in str(refused.properties.reason_string)


@pytest.mark.parametrize("version", [V3, V5])
def test_the_usual_limits_are_those_of_brokers(
    tmp_path: Path, broker: MosquittoServer, version: int
) -> None:
    """Nothing that a client may say to the embedded broker is refused before it."""
    deep = "/".join("a" * 200)
    with (
        run_gateway(tmp_path, broker.port) as gateway,
        RawClient(gateway.port, version=version) as client,
        RawClient(gateway.port, version=version) as other,
    ):
        answer = client.connect("x" * 65_535, keep_alive=0)
        assert answer.reason == 0
        if version == V5:
            assert answer.properties.server_keep_alive == 65_535
            assert dict(answer.properties.user)["penstock-topic-levels"] == "200"
        other.connect("other", keep_alive=65_535)
        assert other.subscribe(deep, qos=1).reasons == (1,)
        share = f"$share/g/{'/'.join('a' * 198)}"
        assert other.subscribe(share, f"$share/g/{deep}", qos=1).reasons[0] == 1
        client.publish(deep, b"deep", qos=1)
        client.publish(deep, b"large" * 200_000, qos=1)
        assert [len(it.payload) for it in other.messages(2)] == [4, 1_000_000]
        client.publish(f"{deep}/a", b"deeper", qos=1)
        assert other.texts() == []


def test_a_stuck_subscriber_is_closed_and_others_are_served(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """It reads nothing; the writer and the other reader never wait for it."""
    writer, good, stuck = make(), make(), RawClient(gateway.port)
    stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect("stuck")
    stuck.subscribe(topic, qos=0)
    good.subscribe(topic, qos=0)
    process = psutil.Process()
    before = process.memory_info().rss
    payload = b"x" * 30_000
    received = 0
    waits = False
    deadline = time.monotonic() + 15
    while gateway.do(lambda: "stuck" in gateway.gateway.clients):
        assert time.monotonic() < deadline
        for _ in range(20):
            writer.publish(topic, payload)
        writer.publish(f"{topic}/end", b"", qos=1)
        received += len(good.messages(20, quiet=0.01))
        waits = waits or gateway.do(lambda: _waits(gateway.gateway.clients.get("stuck")))
    assert received >= 20
    assert process.memory_info().rss - before < 60 << 20
    # The broker was never left waiting: what there was no room for is dropped here.
    assert counted("penstock_gateway_denied_total", what="delivery", reason="slow") > 0
    assert not waits
    stuck.vanish()


def test_a_burst_for_a_slow_client_is_dropped_beyond_its_queue(
    gateway: GatewayThread, broker: MosquittoServer, make: Make, topic: str
) -> None:
    """However it comes in, at most the queue waits; what was dropped is counted."""
    slow, writer = RawClient(gateway.port), make()
    slow.connect("slow")
    slow.subscribe(topic, qos=0)
    before = counted("penstock_gateway_denied_total", what="delivery", reason="slow")
    # More than the kernel's buffers take.
    sent, payload = 10_000, b"x" * 2_000
    client = gateway.gateway.clients["slow"]
    most = 0
    with RawClient(broker.port) as behind:
        behind.connect("behind")
        for _ in range(10):
            behind.send_bytes(Publish.of(topic, payload).encode(V5) * (sent // 10))
            behind.publish("settled", qos=1)
            most = max(most, gateway.do(client.transport.get_write_buffer_size))
    assert 0 < most <= 65_536 + 2 * len(payload)
    assert not gateway.do(lambda: _waits(client))
    dropped = counted("penstock_gateway_denied_total", what="delivery", reason="slow") - before
    assert dropped > 0
    assert len(slow.messages(int(sent - dropped))) == sent - dropped
    # It is served again once it has caught up.
    writer.publish(topic, b"again", qos=1)
    assert slow.texts(1) == [(topic, b"again")]
    slow.close()


def test_a_client_that_keeps_up_gets_a_burst_larger_than_its_queue(
    gateway: GatewayThread, broker: MosquittoServer, make: Make, topic: str
) -> None:
    reader = make()
    reader.subscribe(topic, qos=0)
    with RawClient(broker.port) as behind:
        behind.connect("behind")
        for _ in range(10):
            # Four queues at a time, which the kernel takes at once.
            behind.send_bytes(Publish.of(topic, b"x" * 16_000).encode(V5) * 16)
            assert len(reader.messages(16, quiet=0)) == 16


def test_a_slow_subscriber_loses_no_message_of_qos_1(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    writer, slow = make(), make()
    slow.subscribe(topic, qos=1)
    for number in range(100):
        writer.publish(topic, b"%05d" % number + b"x" * 60_000, qos=1)
    time.sleep(0.5)
    got = slow.messages(100)
    assert [int(it.payload[:5]) for it in got] == list(range(100))


def test_a_client_that_never_reads_answers_cannot_fill_the_memory(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """Every publish of QoS 1 is answered; a client that reads no answer stops being read."""
    flooder = RawClient(gateway.port, version=V3)
    flooder.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    flooder.connect("flooder")
    process = psutil.Process()
    before = process.memory_info().rss
    packet = b"".join(
        Publish.of(topic, b"y" * 10, qos=1, packet_id=number).encode(V3) for number in range(1, 500)
    )
    flooder.socket.settimeout(0.5)
    deadline = time.monotonic() + 4
    try:
        while time.monotonic() < deadline:
            flooder.socket.send(packet)
    except OSError:
        pass
    make().publish(f"{topic}/other", b"served", qos=1)
    assert process.memory_info().rss - before < 60 << 20
    flooder.vanish()


def test_a_flood_of_topics_is_forgotten(gateway: GatewayThread, make: Make, topic: str) -> None:
    client = make()
    for batch in range(10):
        data = b"".join(
            Publish.of(f"{topic}/{batch}/{number}").encode(V5) for number in range(1_000)
        )
        client.send_bytes(data)
    client.publish(topic, b"", qos=1)

    def sizes() -> list[int]:
        connections = [len(it.writes) for it in gateway.gateway.clients.connections]
        return [len(gateway.gateway.context.topics), *connections]

    assert max(gateway.do(sizes)) <= 8_192


def test_packets_before_the_connack_wait_for_it(gateway: GatewayThread, topic: str) -> None:
    client = RawClient(gateway.port)
    early = Subscribe(1, (RequestedSubscription(topic, 1),)).encode(V5)
    early += Publish.of(topic, b"early", qos=1, packet_id=2).encode(V5)
    client.send_bytes(b"\x10\x12\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x05early" + early)
    assert client.texts(1) == [(topic, b"early")]
    client.close()


def test_a_denied_publish_of_qos_2_is_completed_for_version_3(make: Make) -> None:
    client = make(version=V3)
    client.send(Publish.of("!NO", b"", qos=2, packet_id=7))
    assert client.socket.recv(8) == encode_pubrec(7)
    client.send_bytes(b"\x62\x02\x00\x07")
    assert client.socket.recv(8) == b"\x70\x02\x00\x07"


def test_keep_alive_towards_the_broker_is_kept(tmp_path: Path, broker: MosquittoServer) -> None:
    """The client sends commands only, which are swallowed; the broker must not miss it."""
    port = broker.port
    with (
        run_gateway(
            tmp_path, port, broker={"mode": "external", "port": port, "keep_alive": "2s"}
        ) as gateway,
        RawClient(gateway.port) as client,
    ):
        client.connect("swallowed")
        until = time.monotonic() + 10  # Mosquitto looks every few seconds
        while time.monotonic() < until:
            client.publish("!PBAC/TREE", qos=1)
            time.sleep(0.3)
        client.settle()


def test_keep_alive_towards_the_broker_is_kept_while_nothing_is_read(
    tmp_path: Path, broker: MosquittoServer, topic: str
) -> None:
    """The definitions are stale for longer than the broker would wait for a silent client."""
    port = broker.port
    with (
        run_gateway(
            tmp_path, port, broker={"mode": "external", "port": port, "keep_alive": "2s"}
        ) as gateway,
        RawClient(gateway.port) as client,
        RawClient(port) as behind,
    ):
        client.connect("patient")
        client.subscribe(topic, qos=1)
        behind.connect("behind")
        upstream = gateway.gateway.clients["patient"].broker()
        gateway.do(lambda: upstream.pause("stale"))
        behind.publish(topic, b"kept", qos=1)
        time.sleep(10)  # Mosquitto looks for silent clients every few seconds
        assert client.texts() == []
        gateway.do(lambda: upstream.resume("stale"))
        assert client.texts(1) == [(topic, b"kept")]
        assert not client.closed
