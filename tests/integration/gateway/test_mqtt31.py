"""Clients of MQTT 3.1: served as those of 3.1.1, in what their own version can say."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.sync.client import connect as connect_websocket

from penstock.mqtt import V3, Connect, Publish, Pubrec, ReasonCode, Will
from tests.support.gateway.clients import Make
from tests.support.gateway.fixtures import AnyBroker, run_both_ways
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
pytest_generate_tests = run_both_ways


class OldClient(RawClient):
    """A client of MQTT 3.1."""

    def __init__(self, port: int, client_id: str, *, clean: bool = True, **options: Any) -> None:
        super().__init__(port, version=V3)
        self.send(Connect(client_id, V3, clean, 60, is_31=True, **options))
        self.connack = self.socket.recv(4)


def test_messages_of_every_qos_pass_both_ways(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    new = make()
    new.subscribe(f"{topic}/#")
    with OldClient(gateway.port, "old") as old:
        assert old.connack == b"\x20\x02\x00\x00"
        assert old.subscribe(f"{topic}/to", qos=2).reasons == (2,)
        for qos in (0, 1, 2):
            old.publish(f"{topic}/from", b"%d" % qos, qos=qos)
            new.publish(f"{topic}/to", b"%d" % qos, qos=qos)
        assert [(it.payload, it.qos) for it in old.messages(3)] == [
            (b"%d" % qos, qos) for qos in (0, 1, 2)
        ]
        assert {(it.topic, it.payload) for it in new.messages(6)} == {
            (f"{topic}/{way}", b"%d" % qos) for way in ("from", "to") for qos in (0, 1, 2)
        }


def test_a_refused_subscription_is_answered_as_granted_and_gets_nothing(
    broker: AnyBroker, tmp_path: Any, topic: str
) -> None:
    """MQTT 3.1 has no failure in SUBACK: it must be acknowledged positively."""
    settings = {"filtering": {"mode": "subscribe"}}
    with (
        run_gateway(tmp_path, broker.port, settings) as gateway,
        RawClient(gateway.port) as admin,
        OldClient(gateway.port, "old") as old,
        RawClient(gateway.port, version=V3) as newer,
    ):
        admin.connect("admin")
        newer.connect("newer")
        admin.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
        wanted = (f"!AP/{topic}/HASH{{ads}}", "a/#/b", f"!AP/{topic}/HASH{{billing}}")
        assert newer.subscribe(*wanted, qos=1).reasons == (0x80, 0x80, 1)
        assert old.subscribe(*wanted[:2], qos=1).reasons == (1, 1)
        admin.publish(f"{topic}/x", b"for billing", qos=1)
        assert old.texts() == []
        assert old.subscribe(wanted[2], qos=1).reasons == (1,)
        admin.publish(f"{topic}/x", b"for billing", qos=1)
        assert old.texts(1) == [(f"{topic}/x", b"for billing")]


def test_a_kept_session_is_resumed_without_a_flag_that_says_so(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    with OldClient(gateway.port, f"kept-{topic}", clean=False) as old:
        old.subscribe(topic, qos=1)
    make().publish(topic, b"while away", qos=1)
    with OldClient(gateway.port, f"kept-{topic}", clean=False) as again:
        assert again.connack == b"\x20\x02\x00\x00"
        assert again.texts(1) == [(topic, b"while away")]


def test_what_is_sent_again_may_say_so(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader = make()
    reader.subscribe(topic)
    with OldClient(gateway.port, "retries") as old:
        old.send_bytes(b"\x8a" + _subscribe(topic))
        old.send(Publish.of(topic, b"once", qos=2, packet_id=9))
        old.expect(Pubrec)
        old.send_bytes(b"\x6a\x02\x00\x09")
        old.expect_answer(9)
        assert reader.texts(1) == [(topic, b"once")]


def _subscribe(topic: str) -> bytes:
    body = b"\x00\x07" + len(topic).to_bytes(2) + topic.encode() + b"\x01"
    return bytes((len(body),)) + body


def test_a_will_is_sent(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader = make()
    reader.subscribe(topic)
    lost = OldClient(gateway.port, "lost", will=Will(topic, b"gone", 1))
    lost.vanish()
    assert reader.texts(1) == [(topic, b"gone")]


@pytest.mark.parametrize(("size", "code"), [(0, 2), (1, 0), (23, 0), (24, 0), (200, 0)])
def test_client_identifiers_have_a_character_or_more(
    gateway: GatewayThread, size: int, code: int
) -> None:
    """Of 3.1's limits, 1 to 23 characters, brokers hold to the lower one alone."""
    with OldClient(gateway.port, "x" * size) as old:
        assert old.connack == bytes((0x20, 2, 0, code))


def test_the_limit_of_client_identifiers_holds(broker: AnyBroker, tmp_path: Any) -> None:
    limits = {"limits": {"client_id_bytes": 23}}
    with run_gateway(tmp_path, broker.port, limits) as gateway:
        with OldClient(gateway.port, "x" * 23) as old:
            assert old.connack[3] == 0
        with OldClient(gateway.port, "x" * 24) as old:
            assert old.connack[3] == 2
        with RawClient(gateway.port) as new:
            answer = new.connect("x" * 24)
    assert answer.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert answer.properties.reason_string == (
        "the client identifier has 24 bytes; at most 23 are taken"
    )


def test_old_clients_come_by_websocket_too(broker: AnyBroker, tmp_path: Any) -> None:
    listeners = {"listeners": {"mqtt": {"port": 0, "transport": "websocket"}}}
    with run_gateway(tmp_path, broker.port, listeners) as gateway:
        address = f"ws://127.0.0.1:{gateway.port}/mqtt"
        names: Any = ["mqttv3.1"]
        with connect_websocket(address, subprotocols=names, compression=None) as web:
            assert web.subprotocol == "mqttv3.1"
            web.send(Connect("old", V3, keep_alive=60, is_31=True).encode())
            assert web.recv() == b"\x20\x02\x00\x00"
