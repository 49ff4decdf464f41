import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    V3,
    V5,
    ClientIdError,
    Connack,
    Connect,
    MalformedPacketError,
    MqttError,
    Properties,
    ProtocolError,
    Pubrel,
    Reader,
    Sender,
    Subscribe,
    TopicNameError,
    Unsubscribe,
    UnsupportedVersionError,
    Will,
)
from tests.support.mqtt.packets import field, packet, read, refusal

BOTH = pytest.mark.parametrize("version", [V3, V5])
NO_LIST = {V3: b"", V5: b"\x00"}


def connect(version: int, flags: int, *payload: bytes, listed: bytes | None = None) -> bytes:
    if listed is None:
        listed = NO_LIST[version]
    return packet(0x10, field("MQTT"), version, flags, b"\x00\x3c", listed, *payload)


def opened(data: bytes) -> Connect:
    found = read(data, version=None)
    assert isinstance(found, Connect)
    return found


def refused(data: bytes) -> MqttError:
    return refusal(data, version=None)


@BOTH
def test_a_plain_connect(version: int) -> None:
    found = opened(connect(version, 0x02, field("me")))
    assert found == Connect("me", version, keep_alive=60)
    assert found.encode() == connect(version, 0x02, field("me"))


@BOTH
def test_everything_that_a_connect_can_say(version: int) -> None:
    data = connect(
        version,
        0xEC,
        field("me"),
        NO_LIST[version],
        field("will/topic"),
        field(b"\x00gone"),
        field("user"),
        field(b"\xffpass"),
    )
    will = Will("will/topic", b"\x00gone", qos=1, retain=True)
    expected = Connect(
        "me", version, clean_start=False, keep_alive=60, username="user", password=b"\xffpass",
        will=will,
    )  # fmt: skip
    assert opened(data) == expected
    assert expected.encode() == data


def test_properties_of_connect_and_will() -> None:
    given = Connect(
        "",
        V5,
        will=Will("w", b"", 2, properties=Properties(will_delay=5, user=(("a", "b"),))),
        properties=Properties(session_expiry=9, receive_maximum=3, topic_alias_maximum=0),
    )
    assert opened(given.encode()) == given


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        ("MQIsdp", 4, "20020001"),
        ("MQIsdp", 0x83, "20020001"),
        ("MQTT", 3, "20020001"),
        ("MQTT", 0x84, "20020001"),
        ("MQTT", 6, "2003008400"),
        ("HTTP", 4, "20020001"),
    ],
)
def test_other_protocols_are_refused_in_words_they_know(name: str, level: int, answer: str) -> None:
    error = refused(packet(0x10, field(name), level, 2, b"\x00\x00", field("me")))
    assert isinstance(error, UnsupportedVersionError)
    assert error.reason == 0x84
    assert error.connack() == bytes.fromhex(answer)


def test_a_refused_version_does_not_need_the_rest_to_be_in_order() -> None:
    assert isinstance(refused(packet(0x10, field("MQIsdp"), 4)), UnsupportedVersionError)


def old_connect(flags: int, *payload: bytes) -> bytes:
    return packet(0x10, field("MQIsdp"), 3, flags, b"\x00\x3c", *payload)


def test_mqtt_31_is_read_as_311() -> None:
    data = old_connect(0xC0, field("me"), field("user"), field("pass"))
    found = opened(data)
    assert (found.version, found.is_31, found.clean_start) == (V3, True, False)
    assert (found.username, found.password) == ("user", b"pass")
    assert found.encode() == data


def test_mqtt_31_knows_no_reserved_connect_flag() -> None:
    assert opened(old_connect(0x03, field("me"))).client_id == "me"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ((), (None, None)),
        ((field("user"),), ("user", None)),
        ((field("user"), field("pass")), ("user", b"pass")),
    ],
)
def test_mqtt_31_may_leave_out_what_its_flags_promise(
    payload: tuple[bytes, ...], expected: tuple[str | None, bytes | None]
) -> None:
    found = opened(old_connect(0xC2, field("me"), *payload))
    assert (found.username, found.password) == expected


def test_mqtt_31_names_itself_with_any_length() -> None:
    assert isinstance(refused(old_connect(0x02, field(""))), ClientIdError)
    assert opened(old_connect(0x02, field("x" * 100))).client_id == "x" * 100


@pytest.mark.parametrize("kind", [0x82, 0xA2])
def test_mqtt_31_marks_what_it_sends_again(kind: int) -> None:
    options = b"\x01" if kind == 0x82 else b""
    again = packet(kind | 0x08, b"\x00\x07", field("a/b"), options)
    old, new = Reader(Sender.CLIENT), Reader(Sender.CLIENT)
    old.feed(old_connect(0x02, field("me")) + packet(0x6A, b"\x00\x05") + again)
    _, release, request = old.packets()
    assert isinstance(release, Pubrel)
    assert isinstance(request, Subscribe if kind == 0x82 else Unsubscribe)
    new.feed(connect(V3, 0x02, field("me")) + again)
    new.packets()
    with pytest.raises(MalformedPacketError, match="reserved flags"):
        new.packets()


@pytest.mark.parametrize("first", [0x18, 0xC8, 0xE8, 0x4A, 0x6B])
def test_no_other_flag_of_mqtt_31_is_forgiven(first: int) -> None:
    reader = Reader(Sender.CLIENT)
    reader.feed(old_connect(0x02, field("me")) + packet(first))
    reader.packets()
    with pytest.raises(MalformedPacketError, match="reserved flags"):
        reader.packets()


def test_a_long_protocol_name_is_malformed() -> None:
    assert type(refused(packet(0x10, field("GET / HTTP/1.1")))) is MalformedPacketError


@BOTH
def test_the_version_is_known_even_if_the_rest_is_refused(version: int) -> None:
    reader = Reader(Sender.CLIENT)
    reader.feed(connect(version, 0x03, field("me")))
    with pytest.raises(MalformedPacketError):
        reader.packets()
    assert reader.version == version


@BOTH
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (0x03, "reserved"),
        (0x0A, "without will"),
        (0x12, "without will"),
        (0x22, "without will"),
        (0x1E, "will QoS is 3"),
    ],
)
def test_flags_that_contradict_each_other_are_malformed(
    version: int, flags: int, text: str
) -> None:
    error = refused(connect(version, flags, field("me"), field("w"), field("")))
    assert type(error) is MalformedPacketError
    assert text in str(error)


def test_a_password_without_user_name_is_for_mqtt_5_only() -> None:
    assert type(refused(connect(V3, 0x42, field("me"), field("p")))) is MalformedPacketError
    found = opened(connect(V5, 0x42, field("me"), field("p")))
    assert (found.username, found.password) == (None, b"p")
    with pytest.raises(UsageError, match="without user name"):
        found.encode(V3)


def test_an_empty_client_id_of_3_1_1_needs_a_clean_session() -> None:
    assert opened(connect(V3, 0x02, field(""))).client_id == ""
    error = refused(connect(V3, 0x00, field("")))
    assert type(error) is ClientIdError
    assert error.reason == 0x85
    assert opened(connect(V5, 0x00, field(""))).client_id == ""


@BOTH
@pytest.mark.parametrize("topic", ["", "a/#", "+"])
def test_a_will_needs_a_topic_without_wildcards(version: int, topic: str) -> None:
    data = connect(version, 0x06, field("me"), NO_LIST[version], field(topic), field(""))
    assert type(refused(data)) is TopicNameError


@BOTH
def test_flags_promise_what_the_payload_holds(version: int) -> None:
    whole = connect(version, 0xC2, field("me"), field("user"), field("pass"))
    for cut in range(2, len(whole)):
        data = bytes((0x10, cut - 2)) + whole[2:cut]
        assert type(refused(data)) is MalformedPacketError
    assert type(refused(connect(version, 0x02, field("me"), b"x"))) is MalformedPacketError


@BOTH
@pytest.mark.parametrize("bad", [b"\x00", b"\xff"])
def test_client_id_and_user_name_are_text(version: int, bad: bytes) -> None:
    assert type(refused(connect(version, 0x02, field(bad)))) is MalformedPacketError
    assert type(refused(connect(version, 0x82, field("me"), field(bad)))) is MalformedPacketError


def test_authentication_data_needs_a_method() -> None:
    listed = b"\x04\x16\x00\x01x"
    assert type(refused(connect(V5, 0x02, field("me"), listed=listed))) is ProtocolError
    data = packet(0x20, 0, 0, listed)
    assert type(refusal(data, Sender.SERVER)) is ProtocolError


def test_passwords_and_will_payloads_do_not_show() -> None:
    given = Connect("me", username="user", password=b"s3cret", will=Will("w", b"s3cret"))
    assert "s3cret" not in repr(given)


def test_connack_of_3_1_1() -> None:
    assert read(b"\x20\x02\x01\x00", Sender.SERVER, V3) == Connack(0, session_present=True)
    assert read(b"\x20\x02\x00\x05", Sender.SERVER, V3) == Connack(0x87)
    assert Connack(0x87).encode(V3) == b"\x20\x02\x00\x05"
    assert Connack(0, session_present=True).encode(V3) == b"\x20\x02\x01\x00"


def test_connack_of_mqtt_5() -> None:
    given = Connack(0x87, properties=Properties(reason_string="no", maximum_qos=1))
    assert read(given.encode(V5), Sender.SERVER) == given
    assert Connack().encode(V5) == b"\x20\x03\x00\x00\x00"


def test_a_refusal_never_says_that_a_session_is_present() -> None:
    assert Connack(0x87, session_present=True).encode(V5)[2] == 0
    assert type(refusal(b"\x20\x02\x01\x05", Sender.SERVER, V3)) is ProtocolError
    assert type(refusal(b"\x20\x03\x01\x87\x00", Sender.SERVER)) is ProtocolError


@pytest.mark.parametrize(
    ("data", "version", "error"),
    [
        (b"\x20\x02\x02\x00", V3, MalformedPacketError),
        (b"\x20\x02\x00\x06", V3, ProtocolError),
        (b"\x20\x01\x00", V3, MalformedPacketError),
        (b"\x20\x03\x00\x00\x00", V3, MalformedPacketError),
        (b"\x20\x03\x00\x04\x00", V5, ProtocolError),
        (b"\x20\x03\x80\x00\x00", V5, MalformedPacketError),
        (b"\x20\x02\x00\x00", V5, MalformedPacketError),
        (b"\x20\x04\x00\x00\x00\x00", V5, MalformedPacketError),
    ],
)
def test_connacks_that_are_refused(data: bytes, version: int, error: type[MqttError]) -> None:
    assert type(refusal(data, Sender.SERVER, version)) is error
