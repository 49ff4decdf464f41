from dataclasses import fields

import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    NO_PROPERTIES,
    MalformedPacketError,
    MqttError,
    PacketType,
    Properties,
    ProtocolError,
    TopicAliasError,
    TopicNameError,
    encode_subscription_identifiers,
    encode_user_properties,
)
from penstock.mqtt.data_types import Cursor
from penstock.mqtt.properties import (
    TABLE,
    WILL,
    Place,
    encode_items,
    encode_properties,
    read_properties,
    scan,
)
from tests.support.mqtt.packets import field

# What the specification's table 2-4 says, written down a second time.
PLACES: dict[int, str] = {
    0x01: "PUBLISH will",
    0x02: "PUBLISH will",
    0x03: "PUBLISH will",
    0x08: "PUBLISH will",
    0x09: "PUBLISH will",
    0x0B: "PUBLISH SUBSCRIBE",
    0x11: "CONNECT CONNACK DISCONNECT",
    0x12: "CONNACK",
    0x13: "CONNACK",
    0x15: "CONNECT CONNACK AUTH",
    0x16: "CONNECT CONNACK AUTH",
    0x17: "CONNECT",
    0x18: "will",
    0x19: "CONNECT",
    0x1A: "CONNACK",
    0x1C: "CONNACK DISCONNECT",
    0x1F: "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    0x21: "CONNECT CONNACK",
    0x22: "CONNECT CONNACK",
    0x23: "PUBLISH",
    0x24: "CONNACK",
    0x25: "CONNACK",
    0x26: "CONNECT CONNACK PUBLISH will PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK "
    "UNSUBSCRIBE UNSUBACK DISCONNECT AUTH",
    0x27: "CONNECT CONNACK",
    0x28: "CONNACK",
    0x29: "CONNACK",
    0x2A: "CONNACK",
}

SAMPLES: dict[int, bytes] = {
    0x01: b"\x01",
    0x02: b"\x00\x00\x00\x01",
    0x03: field("text/plain"),
    0x08: field("answers/1"),
    0x09: field(b"\x00\xff"),
    0x0B: b"\x80\x01",
    0x11: b"\xff\xff\xff\xff",
    0x12: field("client-1"),
    0x13: b"\x00\x00",
    0x15: field("SCRAM"),
    0x16: field(b"\x00"),
    0x17: b"\x00",
    0x18: b"\x00\x00\x00\x00",
    0x19: b"\x01",
    0x1A: field("answers"),
    0x1C: field("other:1883"),
    0x1F: field("because"),
    0x21: b"\x00\x01",
    0x22: b"\x00\x00",
    0x23: b"\x00\x01",
    0x24: b"\x01",
    0x25: b"\x00",
    0x26: field("name") + field(""),
    0x27: b"\x00\x00\x00\x01",
    0x28: b"\x00",
    0x29: b"\x01",
    0x2A: b"\x00",
}

ALL_PLACES: list[Place] = [
    *(kind for kind in PacketType if kind.name not in {"PINGREQ", "PINGRESP"}),
    WILL,
]


def place_name(place: Place) -> str:
    return place.name if isinstance(place, PacketType) else place


def properties(raw: bytes, place: Place) -> Properties:
    data = bytes((len(raw),)) + raw
    cursor = Cursor("TEST", data, 0, len(data))
    found = read_properties(cursor, place)
    cursor.finish()
    return found


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(PLACES) == set(SAMPLES)
    assert [rule.name for rule in TABLE.values()] == [item.name for item in fields(Properties)]


@pytest.mark.parametrize("identifier", PLACES)
@pytest.mark.parametrize("place", ALL_PLACES, ids=place_name)
def test_a_property_stands_only_where_it_may(identifier: int, place: Place) -> None:
    raw = bytes((identifier,)) + SAMPLES[identifier]
    if place_name(place) in PLACES[identifier].split():
        found = properties(raw, place)
        assert encode_items(found, place) == raw
    else:
        with pytest.raises(MalformedPacketError, match=f"0x{identifier:02x} does not belong here"):
            properties(raw, place)


@pytest.mark.parametrize("identifier", PLACES)
def test_only_some_properties_may_stand_twice(identifier: int) -> None:
    raw = (bytes((identifier,)) + SAMPLES[identifier]) * 2
    for place in ALL_PLACES:
        if place_name(place) not in PLACES[identifier].split():
            continue
        if identifier == 0x26 or (identifier == 0x0B and place is PacketType.PUBLISH):
            assert len(scan("TEST", raw, place)) == 2
        else:
            with pytest.raises(ProtocolError, match="stands twice"):
                properties(raw, place)


@pytest.mark.parametrize("identifier", PLACES)
def test_a_value_that_is_cut_off_is_malformed(identifier: int) -> None:
    whole = bytes((identifier,)) + SAMPLES[identifier]
    place = next(place for place in ALL_PLACES if place_name(place) in PLACES[identifier].split())
    for cut in range(1, len(whole)):
        with pytest.raises(MalformedPacketError, match=r"cut off \(at byte 0 behind"):
            scan("TEST", whole[:cut], place)


@pytest.mark.parametrize("identifier", sorted({*range(256)} - set(PLACES)))
def test_unknown_identifiers_are_malformed(identifier: int) -> None:
    with pytest.raises(MalformedPacketError, match="does not belong"):
        scan("TEST", bytes((identifier, 0, 0)), PacketType.CONNACK)


OUT_OF_RANGE: list[tuple[bytes, Place, type[MqttError]]] = [
    (b"\x01\x02", PacketType.PUBLISH, ProtocolError),
    (b"\x0b\x00", PacketType.SUBSCRIBE, ProtocolError),
    (b"\x17\x02", PacketType.CONNECT, ProtocolError),
    (b"\x19\xff", PacketType.CONNECT, ProtocolError),
    (b"\x21\x00\x00", PacketType.CONNECT, ProtocolError),
    (b"\x23\x00\x00", PacketType.PUBLISH, TopicAliasError),
    (b"\x24\x02", PacketType.CONNACK, ProtocolError),
    (b"\x25\x02", PacketType.CONNACK, ProtocolError),
    (b"\x27\x00\x00\x00\x00", PacketType.CONNECT, ProtocolError),
    (b"\x28\x02", PacketType.CONNACK, ProtocolError),
    (b"\x29\x02", PacketType.CONNACK, ProtocolError),
    (b"\x2a\x02", PacketType.CONNACK, ProtocolError),
    (b"\x08" + field(""), PacketType.PUBLISH, TopicNameError),
    (b"\x08" + field("a/#"), PacketType.PUBLISH, TopicNameError),
    (b"\x08" + field("a/+"), WILL, TopicNameError),
    (b"\x03" + field("a\0"), PacketType.PUBLISH, MalformedPacketError),
    (b"\x26" + field("a\0") + field(""), PacketType.PUBLISH, MalformedPacketError),
    (b"\x26" + field("a") + field("\0"), PacketType.PUBLISH, MalformedPacketError),
    (b"\x26" + field("a") + field(b"\xff"), PacketType.PUBLISH, MalformedPacketError),
    (b"\x0b\x80\x00", PacketType.SUBSCRIBE, MalformedPacketError),
    (b"\x0b\xff\xff\xff\xff\x01", PacketType.SUBSCRIBE, MalformedPacketError),
]


@pytest.mark.parametrize(("raw", "place", "error"), OUT_OF_RANGE)
def test_values_out_of_range_are_refused(raw: bytes, place: Place, error: type[MqttError]) -> None:
    with pytest.raises(error) as caught:
        scan("TEST", raw, place)
    assert type(caught.value) is error
    assert TABLE[raw[0]].name in str(caught.value)


def test_property_length_may_not_exceed_the_packet() -> None:
    with pytest.raises(MalformedPacketError, match="properties needs 5 bytes, 1 are left"):
        read_properties(Cursor("TEST", b"\x05\x01", 0, 2), PacketType.PUBLISH)


def test_a_property_may_not_reach_over_the_property_length() -> None:
    data = b"\x03\x02\x00\x00\x00\x01"
    with pytest.raises(MalformedPacketError, match="cut off"):
        read_properties(Cursor("TEST", data, 0, len(data)), PacketType.PUBLISH)


def test_user_properties_keep_their_order_and_repetitions() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"))
    raw = encode_user_properties(pairs)
    assert properties(raw, PacketType.SUBACK).user == pairs
    assert encode_properties(Properties(user=pairs), PacketType.SUBACK) == bytes((len(raw),)) + raw


def test_subscription_identifiers_are_encoded_one_by_one() -> None:
    assert encode_subscription_identifiers((1, 300)) == b"\x0b\x01\x0b\xac\x02"


def test_no_properties_are_one_byte() -> None:
    assert encode_properties(NO_PROPERTIES, PacketType.CONNECT) == b"\x00"
    assert properties(b"", PacketType.CONNECT) is NO_PROPERTIES


@pytest.mark.parametrize(
    ("given", "place", "message"),
    [
        (Properties(topic_alias=1), PacketType.CONNECT, "does not belong in CONNECT"),
        (Properties(will_delay=1), PacketType.CONNECT, "does not belong in CONNECT"),
        (Properties(topic_alias=1), WILL, "does not belong in a will"),
        (Properties(subscription_identifiers=(1, 2)), PacketType.SUBSCRIBE, "more than once"),
        (Properties(receive_maximum=0), PacketType.CONNECT, "'0'"),
        (Properties(subscription_identifiers=(0,)), PacketType.SUBSCRIBE, "'0'"),
        (Properties(session_expiry=1 << 32), PacketType.CONNECT, "session_expiry"),
        (Properties(response_topic="a/#"), PacketType.PUBLISH, "not a topic"),
        (Properties(reason_string="x" * 65_536), PacketType.PUBACK, "65536 bytes"),
    ],
)
def test_what_cannot_be_read_is_not_written(given: Properties, place: Place, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encode_properties(given, place)


def test_a_representation_names_properties_without_their_values() -> None:
    shown = repr(Properties(authentication_data=b"s3cret", user=(("k", "s3cret"),)))
    assert shown == "Properties(authentication_data, user)"
