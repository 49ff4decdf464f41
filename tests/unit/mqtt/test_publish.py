import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    NO_PUBLISH_PROPERTIES,
    V3,
    V5,
    MalformedPacketError,
    MqttError,
    Properties,
    PropertyLists,
    ProtocolError,
    Publish,
    Reader,
    Sender,
    TopicNameError,
    TopicNames,
    encode_subscription_identifiers,
    encode_user_properties,
)
from tests.support.mqtt.packets import field, packet, read, refusal

BOTH = pytest.mark.parametrize("version", [V3, V5])
NO_LIST = {V3: b"", V5: b"\x00"}


def publish(data: bytes, sender: Sender = Sender.CLIENT, version: int = V5) -> Publish:
    message = read(data, sender, version)
    assert isinstance(message, Publish)
    return message


@BOTH
def test_qos_0_has_no_packet_identifier(version: int) -> None:
    message = publish(packet(0x30, field("a/b"), NO_LIST[version], b"hello"), version=version)
    assert (message.topic, message.payload, message.packet_id) == ("a/b", b"hello", 0)
    assert (message.qos, message.retain, message.dup) == (0, False, False)
    assert message.properties is NO_PUBLISH_PROPERTIES


@BOTH
@pytest.mark.parametrize(
    ("first", "flags"),
    [
        (0x31, (0, True, False)),
        (0x32, (1, False, False)),
        (0x33, (1, True, False)),
        (0x3A, (1, False, True)),
        (0x3B, (1, True, True)),
        (0x34, (2, False, False)),
        (0x35, (2, True, False)),
        (0x3C, (2, False, True)),
        (0x3D, (2, True, True)),
    ],
)
def test_flags_are_read(version: int, first: int, flags: tuple[int, bool, bool]) -> None:
    number = b"\x01\x02" if first & 6 else b""
    data = packet(first, field("a"), number, NO_LIST[version], b"x")
    message = publish(data, version=version)
    assert (message.qos, message.retain, message.dup) == flags
    assert message.packet_id == (0x0102 if number else 0)
    assert message.encode(version) == data


@BOTH
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_qos_3_is_malformed(version: int, first: int) -> None:
    error = refusal(packet(first, field("a"), b"\x00\x01\x00"), version=version)
    assert type(error) is MalformedPacketError


@BOTH
@pytest.mark.parametrize("first", [0x38, 0x39])
def test_dup_with_qos_0_is_malformed(version: int, first: int) -> None:
    error = refusal(packet(first, field("a"), b"\x00"), version=version)
    assert type(error) is MalformedPacketError


@BOTH
@pytest.mark.parametrize("first", [0x32, 0x34])
def test_packet_identifier_0_is_a_protocol_error(version: int, first: int) -> None:
    error = refusal(packet(first, field("a"), b"\x00\x00\x00"), version=version)
    assert type(error) is ProtocolError


@BOTH
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+"])
def test_wildcards_in_a_topic_name_are_refused(version: int, topic: str) -> None:
    error = refusal(packet(0x30, field(topic), NO_LIST[version]), version=version)
    assert type(error) is TopicNameError
    assert error.reason == 0x90


@BOTH
@pytest.mark.parametrize("topic", [b"a\x00", b"\xff", b"\xed\xa0\x80"])
def test_nul_and_ill_formed_utf8_in_a_topic_name_are_malformed(version: int, topic: bytes) -> None:
    error = refusal(packet(0x30, field(topic), NO_LIST[version]), version=version)
    assert type(error) is MalformedPacketError


def test_an_empty_topic_name_needs_an_alias() -> None:
    assert type(refusal(packet(0x30, field("")), version=V3)) is TopicNameError
    assert type(refusal(packet(0x30, field(""), 0))) is ProtocolError
    message = publish(packet(0x30, field(""), 3, b"\x23\x00\x07"))
    assert (message.topic, message.properties.topic_alias) == ("", 7)


@BOTH
def test_every_shorter_packet_is_malformed(version: int) -> None:
    """A packet that ends in its variable header is never filled up with what follows it."""
    for first, number in ((0x30, b""), (0x32, b"\x00\x01")):
        whole = field("abc") + number + NO_LIST[version]
        follower = packet(0x30, field("next"), NO_LIST[version])
        for cut in range(len(whole)):
            data = bytes((first, cut)) + whole[:cut]
            assert type(refusal(data, version=version)) is MalformedPacketError
            assert type(refusal(data + follower, version=version)) is MalformedPacketError


@pytest.mark.parametrize(
    "listed", [b"\x05\x01\x00", b"\x80", b"\x80\x80\x80\x80\x01", b"\x80\x00", b"\xff\x01"]
)
def test_a_property_length_that_does_not_fit_is_malformed(listed: bytes) -> None:
    assert type(refusal(packet(0x30, field("a"), listed))) is MalformedPacketError


def test_a_long_property_list_is_read() -> None:
    given = Properties(user=(("name", "v" * 300),), content_type="x")
    message = publish(Publish.of("a", b"p", properties=given).to_v5())
    assert message.properties.user == given.user
    assert message.properties.content_type == "x"
    assert message.payload == b"p"


def test_all_properties_are_read() -> None:
    given = Properties(
        payload_format=1,
        message_expiry=60,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        subscription_identifiers=(1, 300),
        topic_alias=5,
        user=(("a", "1"), ("a", "2")),
    )
    found = publish(Publish.of("a", properties=given).to_v5(), Sender.SERVER).properties
    for name in Properties.__dataclass_fields__:
        if getattr(given, name):
            assert getattr(found, name) == getattr(given, name)


def test_only_servers_send_subscription_identifiers() -> None:
    data = packet(0x30, field("a"), 2, b"\x0b\x01")
    assert publish(data, Sender.SERVER).properties.subscription_identifiers == (1,)
    assert type(refusal(data, Sender.CLIENT)) is ProtocolError


def reserved_lists(sender: Sender = Sender.SERVER) -> PropertyLists:
    return PropertyLists(sender, reserved=("penstock-", "_p"))


def test_kept_is_the_list_without_what_belongs_to_the_connection_or_the_gateway() -> None:
    mine = encode_user_properties([("penstock-publisher", "alice"), ("_p", "1")])
    one = encode_user_properties([("penstoc", "x")])
    other = encode_user_properties([("Penstock-publisher", "y")])
    expiry = b"\x02\x00\x00\x00\x09"
    raw = b"".join((b"\x23\x00\x01", one, mine, expiry, b"\x0b\x05", other, b"\x0b\x06"))
    found = reserved_lists().parse(raw)
    assert found.raw == raw
    assert found.kept == one + expiry + other
    assert found.reserved == (("penstock-publisher", "alice"), ("_p", "1"))
    assert found.user == (("penstoc", "x"), ("Penstock-publisher", "y"))
    assert found.subscription_identifiers == (5, 6)
    assert found.topic_alias == 1


def test_a_list_is_read_once() -> None:
    lists = reserved_lists()
    raw = encode_user_properties([("a", "b")])
    assert lists[raw] is lists[bytes(raw)]
    assert len(lists) == 1


def test_lists_that_are_refused_are_refused_each_time() -> None:
    lists = reserved_lists(Sender.CLIENT)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            lists[b"\x0b\x01"]
    assert not lists


def test_what_is_remembered_is_bounded() -> None:
    lists = PropertyLists(Sender.CLIENT, entries=4, longest=10)
    topics = TopicNames(entries=4, longest=10)
    for number in range(1, 100):
        assert lists[b"\x02" + number.to_bytes(4)].message_expiry == number
        assert topics[field(f"t/{number}")] == f"t/{number}"
        assert len(lists) <= 4
        assert len(topics) <= 4
    long = encode_user_properties([("name", "value" * 10)])
    assert lists[long].user == (("name", "value" * 10),)
    assert topics[field("t" * 20)] == "t" * 20
    assert long not in lists
    assert field("t" * 20) not in topics


def test_topics_that_are_refused_are_not_remembered() -> None:
    topics = TopicNames()
    for bad in ("a/#", b"\xff", "\0"):
        with pytest.raises(MqttError):
            topics[field(bad)]
    assert not topics


def test_a_message_is_written_for_the_other_version() -> None:
    body = field("a/b") + b"\x00\x07"
    old = publish(packet(0x33, body, b"hello"), version=V3)
    assert old.to_v5() == packet(0x33, body, 0, b"hello")
    listed = encode_user_properties([("k", "v")])
    assert old.to_v5(listed) == packet(0x33, body, len(listed), listed, b"hello")
    new = publish(packet(0x33, body, len(listed), listed, b"hello"))
    assert new.to_v3() == packet(0x33, body, b"hello")
    assert new.to_v5(b"") == packet(0x33, body, 0, b"hello")


@pytest.mark.parametrize("size", [0, 100, 117, 118, 119, 120, 121, 122, 200, 3_000, 70_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_every_length_of_payload_survives(size: int, qos: int) -> None:
    message = Publish.of("a/b", bytes(size), qos=qos, packet_id=qos)
    for version in (V3, V5):
        assert publish(message.encode(version), version=version) == message


def test_changes_reach_the_wire() -> None:
    listed = encode_user_properties([("penstock-x", "forged"), ("k", "v")])
    data = packet(0x34, field("old"), b"\x00\x01", len(listed) + 3, b"\x23\x00\x02", listed, b"!")
    reader = Reader(Sender.CLIENT, version=V5, properties=reserved_lists(Sender.CLIENT))
    reader.feed(data)
    (message,) = reader.packets()
    assert isinstance(message, Publish)
    message.rename("neu/ö")
    message.packet_id = 515
    added = encode_subscription_identifiers((9,)) + encode_user_properties([("penstock-x", "me")])
    written = publish(message.to_v5(message.properties.kept + added), Sender.SERVER)
    assert (written.topic, written.packet_id, written.payload) == ("neu/ö", 515, b"!")
    assert written.properties.user == (("k", "v"), ("penstock-x", "me"))
    assert written.properties.subscription_identifiers == (9,)
    assert written.properties.topic_alias == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a\0"}, "U\\+0000"),
        ({"topic": ""}, "empty"),
        ({"topic": "a" * 65_536}, "65536 bytes"),
        ({"topic": "a", "qos": 3}, "3 is not QoS"),
        ({"topic": "a", "qos": 1}, "identifier 0 with QoS 1"),
        ({"topic": "a", "packet_id": 1}, "identifier 1 with QoS 0"),
        ({"topic": "a", "qos": 1, "packet_id": 65_536}, "65536"),
        ({"topic": "a", "dup": True}, "DUP"),
        ({"topic": "a", "properties": Properties(receive_maximum=1)}, "does not belong"),
    ],
)
def test_what_cannot_be_read_is_not_made(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Publish.of(**arguments)  # type: ignore[arg-type]


def test_a_new_topic_is_checked() -> None:
    message = Publish.of("a")
    with pytest.raises(UsageError, match="wildcard"):
        message.rename("a/+")
    assert message.topic == "a"


def test_a_representation_shows_neither_payload_nor_values() -> None:
    given = Properties(user=(("name", "s3cret"),), correlation_data=b"s3cret")
    assert "s3cret" not in repr(Publish.of("a", b"s3cret", properties=given))
