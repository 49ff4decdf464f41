"""The gateway without rules: clients notice nothing."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.mqtt import (
    V3,
    V5,
    Disconnect,
    Pingresp,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    RequestedSubscription,
    Will,
)
from penstock.mqtt.connect import PINGREQ
from tests.support.gateway.clients import VERSIONS, Make
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.raw import ClosedError, RawClient

pytestmark = BROKERS
pytest_plugins = ("tests.support.gateway.fixtures",)


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_every_qos_pass_once(make: Make, topic: str, version: int, qos: int) -> None:
    reader, writer = make(version=version), make(version=version)
    assert reader.subscribe(f"{topic}/#").reasons == (2,)
    for number in range(20):
        writer.publish(f"{topic}/{number}", b"%d" % number, qos=qos)
    got = reader.messages(20)
    assert [(it.topic, it.payload, it.qos) for it in got] == [
        (f"{topic}/{number}", b"%d" % number, qos) for number in range(20)
    ]


@VERSIONS
def test_the_lower_qos_of_publisher_and_subscriber_holds(
    make: Make, topic: str, version: int
) -> None:
    reader, writer = make(version=version), make(version=version)
    assert reader.subscribe(topic, qos=1).reasons == (1,)
    writer.publish(topic, b"x", qos=2)
    writer.publish(topic, b"y", qos=0)
    assert [it.qos for it in reader.messages(2)] == [1, 0]


def test_versions_talk_to_each_other(make: Make, topic: str) -> None:
    old, new = make(version=V3), make(version=V5)
    old.subscribe(f"{topic}/new")
    new.subscribe(f"{topic}/old")
    new.publish(f"{topic}/new", b"1", qos=1, content_type="text/plain", user=(("a", "b"),))
    old.publish(f"{topic}/old", b"2", qos=1)
    assert old.texts(1) == [(f"{topic}/new", b"1")]
    assert new.texts(1) == [(f"{topic}/old", b"2")]


def test_properties_of_version_5_pass_and_reserved_ones_do_not(make: Make, topic: str) -> None:
    reader, writer = make(), make()
    reader.subscribe(topic)
    writer.publish(
        topic,
        b"{}",
        qos=1,
        payload_format=1,
        content_type="application/json",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        user=(("colour", "red"), ("penstock-publisher", "somebody"), ("colour", "blue")),
    )
    (got,) = reader.messages(1)
    properties = got.properties
    assert properties.user == (("colour", "red"), ("colour", "blue"))
    assert properties.reserved == ()
    assert properties.content_type == "application/json"
    assert properties.response_topic == "answers"
    assert properties.correlation_data == b"\x00\x01"
    assert properties.payload_format == 1
    assert b"penstock" not in properties.raw


def test_the_publisher_and_the_epoch_are_marked_for_the_broker_only(
    broker: AnyBroker, make: Make, topic: str
) -> None:
    with RawClient(broker.port) as behind:
        behind.connect("behind")
        behind.subscribe(topic)
        make().publish(topic, b"x", user=(("penstock-publisher", "liar"),))
        (got,) = behind.messages(1)
    names = dict(got.properties.user)
    assert names["penstock-publisher"] == "anonymous"
    assert names["penstock-epoch"].isdigit()
    assert len(got.properties.user) == 2


def test_subscription_identifiers_of_the_client_are_kept(make: Make, topic: str) -> None:
    reader, writer = make(), make()
    reader.subscribe(f"{topic}/a", subscription_identifiers=(7,))
    reader.subscribe(f"{topic}/b", subscription_identifiers=(200_000,))
    reader.subscribe(f"{topic}/c")
    for end in "abc":
        writer.publish(f"{topic}/{end}", end.encode(), qos=1)
    got = {it.payload: it.properties.subscription_identifiers for it in reader.messages(3)}
    assert got == {b"a": (7,), b"b": (200_000,), b"c": ()}


@VERSIONS
def test_overlapping_subscriptions_give_no_more_copies_than_the_broker(
    broker: AnyBroker, gateway: GatewayThread, make: Make, topic: str, version: int
) -> None:
    with RawClient(broker.port, version=version) as direct:
        direct.connect(f"direct-{topic}")
        through = make(version=version)
        for client in (direct, through):
            client.subscribe(f"{topic}/#", f"{topic}/+", f"{topic}/x", qos=1)
        make().publish(f"{topic}/x", b"!", qos=1)
        assert through.texts(1) == direct.texts(1)


def test_no_local_and_retain_as_published_are_the_brokers(make: Make, topic: str) -> None:
    client, other = make(), make()
    client.subscribe(
        RequestedSubscription(f"{topic}/own", 1, no_local=True),
        RequestedSubscription(f"{topic}/kept", 1, retain_as_published=True),
        RequestedSubscription(f"{topic}/plain", 1),
    )
    client.publish(f"{topic}/own", b"mine", qos=1)
    other.publish(f"{topic}/own", b"yours", qos=1)
    other.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
    other.publish(f"{topic}/plain", b"plain", qos=1, retain=True)
    got = {it.payload: it.retain for it in client.messages(3)}
    assert got == {b"yours": False, b"kept": True, b"plain": False}


def test_retain_handling_is_the_brokers(make: Make, topic: str) -> None:
    make().publish(topic, b"kept", qos=1, retain=True)
    client = make()
    client.subscribe(RequestedSubscription(topic, 1, retain_handling=2))
    assert client.messages() == []
    client.subscribe(RequestedSubscription(topic, 1, retain_handling=0))
    assert [(it.payload, it.retain) for it in client.messages(1)] == [(b"kept", True)]
    client.subscribe(RequestedSubscription(topic, 1, retain_handling=1))
    assert client.messages() == []


def test_topic_aliases_are_expanded(make: Make, topic: str) -> None:
    reader, writer = make(version=V3), make()
    reader.subscribe(f"{topic}/#")
    writer.send(Publish.of(f"{topic}/a", b"1", properties=Properties(topic_alias=3)))
    writer.send(Publish.of("", b"2", properties=Properties(topic_alias=3)))
    writer.send(Publish.of(f"{topic}/b", b"3", properties=Properties(topic_alias=3)))
    writer.send(Publish.of("", b"4", properties=Properties(topic_alias=3)))
    assert reader.texts(4) == [
        (f"{topic}/a", b"1"),
        (f"{topic}/a", b"2"),
        (f"{topic}/b", b"3"),
        (f"{topic}/b", b"4"),
    ]


def test_a_topic_alias_that_was_never_introduced_ends_the_connection(make: Make) -> None:
    client = make()
    client.send(Publish.of("", b"2", properties=Properties(topic_alias=9)))
    assert client.expect(Disconnect).reason == ReasonCode.PROTOCOL_ERROR
    client.wait_closed()


def test_what_came_before_a_broken_packet_still_goes_to_the_broker(make: Make, topic: str) -> None:
    reader, writer = make(), make()
    reader.subscribe(topic)
    writer.send_bytes(Publish.of(topic, b"good").encode(V5) + b"\x00\x00")
    assert reader.texts(1) == [(topic, b"good")]
    assert writer.expect(Disconnect).reason == ReasonCode.MALFORMED_PACKET


@VERSIONS
def test_a_session_is_resumed_with_what_was_queued(
    gateway: GatewayThread, make: Make, topic: str, version: int
) -> None:
    keep: dict[str, Any] = {"expiry": 300} if version == V5 else {}
    reader = make(f"keeps-{topic}", version=version, clean=False, **keep)
    reader.subscribe(topic, qos=1)
    reader.close()
    writer = make()
    writer.publish(topic, b"while away", qos=1)
    with RawClient(gateway.port, version=version) as again:
        accepted = again.connect(f"keeps-{topic}", clean=False, **keep)
        assert accepted.session_present
        assert again.texts(1) == [(topic, b"while away")]


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_an_unacknowledged_message_comes_again_after_reconnecting(
    make: Make, topic: str, version: int, qos: int
) -> None:
    keep: dict[str, Any] = {"expiry": 300} if version == V5 else {}
    reader = make(f"again-{topic}", version=version, clean=False, answers=False, **keep)
    reader.subscribe(topic)
    make().publish(topic, b"one", qos=qos)
    assert [it.payload for it in reader.messages(1)] == [b"one"]
    reader.vanish()
    again = make(f"again-{topic}", version=version, clean=False, **keep)
    assert [(it.payload, it.dup) for it in again.messages(1)] == [(b"one", True)]


def test_a_takeover_ends_the_other_connection(make: Make, topic: str) -> None:
    first = make(f"taken-{topic}", expiry=300, clean=False)
    first.subscribe(topic, qos=1)
    second = make(f"taken-{topic}", expiry=300, clean=False)
    assert first.expect(Disconnect).reason == ReasonCode.SESSION_TAKEN_OVER
    first.wait_closed()
    make().publish(topic, b"for the second", qos=1)
    assert second.texts(1) == [(topic, b"for the second")]


@VERSIONS
def test_a_lost_client_leaves_its_will_and_a_polite_one_does_not(
    make: Make, topic: str, version: int
) -> None:
    reader = make()
    reader.subscribe(f"{topic}/#")
    lost = make(version=version, will=Will(f"{topic}/lost", b"gone", 1))
    polite = make(version=version, will=Will(f"{topic}/polite", b"gone", 1))
    polite.close()
    lost.vanish()
    assert reader.texts(1) == [(f"{topic}/lost", b"gone")]


def test_a_disconnect_with_will_fires_it(make: Make, topic: str) -> None:
    reader = make()
    reader.subscribe(topic)
    leaver = make(will=Will(topic, b"farewell", 0))
    leaver.send(Disconnect(int(ReasonCode.DISCONNECT_WITH_WILL)))
    assert reader.texts(1) == [(topic, b"farewell")]


def test_an_empty_client_identifier_is_assigned(make: Make, gateway: GatewayThread) -> None:
    with RawClient(gateway.port) as client:
        accepted = client.connect("")
        assert accepted.properties.assigned_client_id
    with RawClient(gateway.port, version=V3) as client:
        assert client.connect("").reason == 0


def test_the_client_is_told_the_smaller_limits_of_broker_and_gateway(
    broker: AnyBroker, gateway: GatewayThread
) -> None:
    with RawClient(broker.port) as direct:
        brokers = direct.connect("limits").properties
    with RawClient(gateway.port) as client:
        told = client.connect("limits").properties
    assert told.receive_maximum == min(100, brokers.receive_maximum or 65_535)
    assert told.maximum_packet_size == 1 << 20
    assert told.topic_alias_maximum == 64


def test_pings_are_answered(make: Make) -> None:
    client = make()
    client.send(PINGREQ)
    client.expect(Pingresp)


def test_unsubscribed_filters_deliver_no_more(broker: AnyBroker, make: Make, topic: str) -> None:
    reader, writer = make(), make()
    reader.subscribe(topic)
    with RawClient(broker.port) as direct:
        direct.connect(f"direct-{topic}")
        unknown = direct.unsubscribe("never/subscribed").reasons[0]
    assert reader.unsubscribe(topic, "never/subscribed").reasons == (0, unknown)
    writer.publish(topic, b"late", qos=1)
    assert reader.texts() == []


def test_shared_subscriptions_share(make: Make, topic: str) -> None:
    members = [make(), make()]
    for member in members:
        member.subscribe(f"$share/team/{topic}", qos=1)
    writer = make()
    for number in range(10):
        writer.publish(topic, b"%d" % number, qos=1)
    got = [text for member in members for text in member.texts()]
    assert sorted(got) == sorted((topic, b"%d" % number) for number in range(10))


def test_a_second_connect_is_a_protocol_error(make: Make) -> None:
    client = make("twice")
    client.send_bytes(b"\x10\x12\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x05twice")
    assert client.expect(Disconnect).reason == ReasonCode.PROTOCOL_ERROR


@VERSIONS
def test_more_messages_in_flight_than_granted(make: Make, topic: str, version: int) -> None:
    """MQTT 5 was told the limit and is closed; 3.1.1 knows none and is held back."""
    writer, reader = make(version=version), make()
    reader.subscribe(topic, qos=0)
    data = b"".join(
        Publish.of(topic, b"%d" % number, qos=2, packet_id=number).encode(version)
        for number in range(1, 151)
    )
    writer.send_bytes(data)
    if version == V5:
        assert writer.expect(Disconnect).reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        return
    released: set[int] = set()
    while len(released) < 150:
        answer = writer.expect_any_pubrec()
        released.add(answer.packet_id)
        writer.release(answer.packet_id)
    assert [it.payload for it in reader.messages(150)] == [b"%d" % n for n in range(1, 151)]


def test_other_protocols_are_refused_in_their_own_words(gateway: GatewayThread) -> None:
    with RawClient(gateway.port, version=V3) as client:
        client.send_bytes(b"\x10\x0f\x00\x06MQIsdp\x04\x02\x00\x3c\x00\x01x")
        assert client.socket.recv(16) == b"\x20\x02\x00\x01"
    with RawClient(gateway.port) as client:
        client.send_bytes(b"\x10\x0e\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x01x")
        assert client.socket.recv(16) == b"\x20\x03\x00\x84\x00"


def test_ill_formed_text_is_refused(make: Make) -> None:
    client = make()
    client.send_bytes(b"\x30\x06\x00\x02\xc3\x28\x00x")
    assert client.expect(Disconnect).reason == ReasonCode.MALFORMED_PACKET
    other = make()
    other.send_bytes(b"\x30\x06\x00\x02a\x00\x00x")
    assert other.expect(Disconnect).reason == ReasonCode.MALFORMED_PACKET
    with pytest.raises(ClosedError):
        other.expect(Pingresp)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_that_is_too_large_for_the_client_is_left_out(
    make: Make, topic: str, qos: int
) -> None:
    reader, writer = make(maximum_packet_size=200, receive_maximum=2), make()
    reader.subscribe(topic)
    for _ in range(5):
        writer.publish(topic, b"x" * 300, qos=qos)
    writer.publish(topic, b"small", qos=qos)
    assert reader.texts(1) == [(topic, b"small")]


def test_a_client_that_was_granted_a_receive_maximum_never_gets_more(
    make: Make, topic: str
) -> None:
    reader, writer = make(answers=False, receive_maximum=3), make()
    reader.subscribe(topic, qos=1)
    for number in range(10):
        writer.publish(topic, b"%d" % number, qos=1)
    arrived: list[bytes] = []
    while len(arrived) < 10:
        got = reader.messages(1)
        assert len(got) <= 3
        arrived += [it.payload for it in got]
        for packet in got:
            reader.send(Puback(packet.packet_id))
    assert arrived == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_window_of_one_lets_everything_pass_in_order(make: Make, topic: str, qos: int) -> None:
    reader, writer = make(receive_maximum=1), make()
    reader.subscribe(topic, qos=qos)
    for number in range(30):
        writer.publish(topic, b"%d" % number, qos=qos)
    assert [it.payload for it in reader.messages(30)] == [b"%d" % number for number in range(30)]
