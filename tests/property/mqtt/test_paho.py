"""Bytes of an independent implementation: what Paho writes, and what it reads of ours."""

from __future__ import annotations

import io
from typing import Any

import paho.mqtt.client as paho
from hypothesis import assume, given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.mqtt import (
    PACKET_SIZE_LIMIT,
    V3,
    V5,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Reader,
    RequestedSubscription,
    Sender,
    Subscribe,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import WILL, encode_properties
from tests.support.mqtt.strategies import filters, names, packet_ids, payloads, properties, texts

OURS_TO_PAHO = {
    "payload_format": "PayloadFormatIndicator",
    "message_expiry": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "subscription_identifiers": "SubscriptionIdentifier",
    "session_expiry": "SessionExpiryInterval",
    "authentication_method": "AuthenticationMethod",
    "authentication_data": "AuthenticationData",
    "request_problem_information": "RequestProblemInformation",
    "will_delay": "WillDelayInterval",
    "request_response_information": "RequestResponseInformation",
    "server_reference": "ServerReference",
    "reason_string": "ReasonString",
    "receive_maximum": "ReceiveMaximum",
    "topic_alias_maximum": "TopicAliasMaximum",
    "topic_alias": "TopicAlias",
    "user": "UserProperty",
    "maximum_packet_size": "MaximumPacketSize",
}


def client(version: int, client_id: str = "") -> tuple[Any, list[bytes]]:
    """Make a Paho client that writes its packets into a list instead of a socket."""
    written: list[bytes] = []
    made: Any = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=True if version == V3 else None,
        protocol=paho.MQTTv311 if version == V3 else paho.MQTTv5,
    )

    def queue(_command: int, packet: bytes, *_: Any) -> MQTTErrorCode:
        written.append(bytes(packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    made._packet_queue = queue
    made._sock = io.BytesIO()  # only asked whether it is there, and closed
    return made, written


def for_paho(given: Properties, kind: int) -> Any:
    made: Any = PahoProperties(kind)  # type: ignore[no-untyped-call]
    for name, theirs in OURS_TO_PAHO.items():
        value = getattr(given, name)
        if value not in (None, ()):
            setattr(made, theirs, list(value) if isinstance(value, tuple) else value)
    return made


def read(data: bytes, version: int | None) -> Packet:
    reader = Reader(Sender.CLIENT, version=version)
    reader.feed(data)
    (packet,) = reader.packets()
    assert reader.buffered == 0
    return packet


@given(
    st.sampled_from((V3, V5)),
    names,
    payloads,
    st.integers(0, 2),
    st.booleans(),
    packet_ids,
    properties(Publish.packet_type, Sender.CLIENT),
)
def test_a_publish_of_paho_is_read(
    version: int,
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,  # noqa: FBT001
    packet_id: int,
    listed: Properties,
) -> None:
    made, written = client(version)
    listed = listed if version == V5 else Properties()
    made._send_publish(
        packet_id,
        topic.encode(),
        payload,
        qos,
        retain,
        dup=False,
        properties=for_paho(listed, PacketTypes.PUBLISH),
    )
    expected = Publish.of(
        topic,
        payload,
        qos=qos,
        retain=retain,
        packet_id=packet_id if qos else 0,
        properties=listed,
    )
    found = read(written[0], version)
    assert isinstance(found, Publish)
    if version == V3:
        assert found == expected
        assert found.to_v3() == written[0]
    else:
        # Paho writes properties in an order of its own.
        assert (found.topic, found.payload, found.first) == (topic, payload, expected.first)
        for name in PublishNames:
            assert getattr(found.properties, name) == getattr(expected.properties, name)
        assert found.to_v5() == written[0]


PublishNames = (
    *("user", "topic_alias", "payload_format", "message_expiry"),
    *("content_type", "response_topic", "correlation_data"),
)


@given(
    st.sampled_from((V3, V5)),
    texts.filter(bool),
    st.integers(0, 65_535),
    st.none() | texts.filter(bool),
    st.none() | payloads,
    st.none() | st.builds(Will, names, payloads, st.integers(0, 2), st.booleans()),
    properties(Connect.packet_type, Sender.CLIENT),
    properties(WILL, Sender.CLIENT),
)
def test_a_connect_of_paho_is_read(
    version: int,
    client_id: str,
    keep_alive: int,
    username: str | None,
    password: bytes | None,
    will: Will | None,
    listed: Properties,
    will_listed: Properties,
) -> None:
    # Paho writes no larger maximum, although the property has four bytes.
    assume((listed.maximum_packet_size or 0) <= PACKET_SIZE_LIMIT)
    made, written = client(version, client_id)
    if username is None:
        password = None
    made._username = None if username is None else username.encode()
    made._password = password
    made._clean_start = True
    if version == V3:
        listed = will_listed = Properties()
    else:
        made._connect_properties = for_paho(listed, PacketTypes.CONNECT)
    if will is not None:
        will = Will(will.topic, will.payload, will.qos, will.retain, will_listed)
        made.will_set(will.topic, will.payload, will.qos, will.retain)
        if version == V5:
            made._will_properties = for_paho(will_listed, PacketTypes.WILLMESSAGE)
    made._send_connect(keep_alive)
    expected = Connect(
        client_id,
        version,
        keep_alive=keep_alive,
        username=username,
        password=password,
        will=will,
        properties=listed,
    )
    assert read(written[0], None) == expected


@given(
    st.sampled_from((V3, V5)),
    st.lists(
        st.builds(
            RequestedSubscription,
            filters,
            st.integers(0, 2),
            st.just(False),  # noqa: FBT003
            st.booleans(),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=4,
    ),
    properties(Subscribe.packet_type, Sender.CLIENT),
)
def test_subscribe_and_unsubscribe_of_paho_are_read(
    version: int, wanted: list[RequestedSubscription], listed: Properties
) -> None:
    made, written = client(version)
    filters_given = tuple(one.filter for one in wanted)
    if version == V3:
        listed = Properties()
        wanted = [RequestedSubscription(one.filter, one.qos) for one in wanted]
        made._send_subscribe(False, [(one.filter.encode(), one.qos) for one in wanted])  # noqa: FBT003
        made._send_unsubscribe(False, [text.encode() for text in filters_given])  # noqa: FBT003
    else:
        options = [
            (
                one.filter.encode(),
                SubscribeOptions(
                    one.qos,
                    noLocal=one.no_local,
                    retainAsPublished=one.retain_as_published,
                    retainHandling=one.retain_handling,
                ),
            )
            for one in wanted
        ]
        made._send_subscribe(False, options, for_paho(listed, PacketTypes.SUBSCRIBE))  # noqa: FBT003
        user = for_paho(Properties(user=listed.user), PacketTypes.UNSUBSCRIBE)
        made._send_unsubscribe(False, [text.encode() for text in filters_given], user)  # noqa: FBT003
    assert read(written[0], version) == Subscribe(1, tuple(wanted), listed)
    expected = Unsubscribe(2, filters_given, Properties(user=listed.user))
    assert read(written[1], version) == expected


@given(st.sampled_from((V3, V5)), packet_ids)
def test_acknowledgements_of_paho_are_read(version: int, packet_id: int) -> None:
    made, written = client(version)
    made._send_puback(packet_id)
    made._send_pubrec(packet_id)
    made._send_pubrel(packet_id)
    made._send_pubcomp(packet_id)
    made._send_pingreq()
    made._send_disconnect()
    found = [read(data, version) for data in written]
    assert [packet.encode(version) for packet in found] == written
    assert found[-1] == Disconnect()


@given(
    st.sampled_from(
        [
            (Publish.packet_type, Sender.SERVER, PacketTypes.PUBLISH),
            (Connect.packet_type, Sender.CLIENT, PacketTypes.CONNECT),
            (Disconnect.packet_type, Sender.SERVER, PacketTypes.DISCONNECT),
            (Subscribe.packet_type, Sender.CLIENT, PacketTypes.SUBSCRIBE),
        ]
    ).flatmap(lambda case: st.tuples(st.just(case), properties(case[0], case[1])))
)
def test_paho_reads_our_properties(case: tuple[tuple[Any, Sender, int], Properties]) -> None:
    (kind, _, theirs), given = case
    assume((given.maximum_packet_size or 0) <= PACKET_SIZE_LIMIT)
    data = encode_properties(given, kind)
    read_by_paho: Any = PahoProperties(theirs)  # type: ignore[no-untyped-call]
    _, size = read_by_paho.unpack(data)
    assert size == len(data)
    for name, other in OURS_TO_PAHO.items():
        value = getattr(given, name)
        if value in (None, ()):
            assert not hasattr(read_by_paho, other)
            continue
        found = getattr(read_by_paho, other)
        assert found == (list(value) if isinstance(value, tuple) else value)
