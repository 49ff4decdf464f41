import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    V3,
    V5,
    MalformedPacketError,
    MqttError,
    Packet,
    Properties,
    ProtocolError,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.codes import ALLOWED
from tests.support.mqtt.packets import field, packet, read, refusal

BOTH = pytest.mark.parametrize("version", [V3, V5])
NO_LIST = {V3: b"", V5: b"\x00"}
ONE = b"\x00\x01"


@BOTH
def test_subscribe(version: int) -> None:
    data = packet(0x82, ONE, NO_LIST[version], field("a/#"), 1, field("b"), 2)
    given = Subscribe(1, (RequestedSubscription("a/#", 1), RequestedSubscription("b", 2)))
    assert read(data, version=version) == given
    assert given.encode(version) == data


def test_options_of_mqtt_5() -> None:
    given = Subscribe(
        1,
        (
            RequestedSubscription("a", 0, no_local=True),
            RequestedSubscription("b", 1, retain_as_published=True),
            RequestedSubscription("c", 2, retain_handling=1),
            RequestedSubscription(
                "d", 2, no_local=True, retain_as_published=True, retain_handling=2
            ),
        ),
        Properties(subscription_identifiers=(5,), user=(("purpose-ap", "billing"),)),
    )
    assert read(given.encode(V5)) == given
    plain = Subscribe(
        1, tuple(RequestedSubscription(one.filter, one.qos) for one in given.subscriptions)
    )
    assert read(given.encode(V3), version=V3) == plain


def test_a_purpose_behind_a_filter_is_no_error_here() -> None:
    given = Subscribe(1, (RequestedSubscription("!AP/a/#{billing}", 1),))
    assert read(given.encode(V3), version=V3) == given


@pytest.mark.parametrize("option", range(256))
def test_options_of_mqtt_5_that_are_refused(option: int) -> None:
    data = packet(0x82, ONE, 0, field("a"), option)
    if option & 0xC0 or option & 3 == 3:
        assert type(refusal(data)) is MalformedPacketError
    elif option & 0x30 == 0x30:
        assert type(refusal(data)) is ProtocolError
    else:
        found = read(data)
        assert isinstance(found, Subscribe)
        assert found.subscriptions[0].options(V5) == option


@pytest.mark.parametrize("option", range(256))
def test_3_1_1_knows_three_options(option: int) -> None:
    data = packet(0x82, ONE, field("a"), option)
    if option > 2:
        assert type(refusal(data, version=V3)) is MalformedPacketError
    else:
        assert isinstance(read(data, version=V3), Subscribe)


def test_no_local_on_a_shared_subscription_is_a_protocol_error() -> None:
    assert type(refusal(packet(0x82, ONE, 0, field("$share/g/a"), 4))) is ProtocolError
    assert isinstance(read(packet(0x82, ONE, 0, field("$share/g/a"), 1)), Subscribe)


def test_a_subscribe_has_one_subscription_identifier() -> None:
    data = packet(0x82, ONE, 4, b"\x0b\x01\x0b\x02", field("a"), 0)
    assert type(refusal(data)) is ProtocolError


@BOTH
def test_unsubscribe(version: int) -> None:
    data = packet(0xA2, ONE, NO_LIST[version], field("a/#"), field("b"))
    given = Unsubscribe(1, ("a/#", "b"))
    assert read(data, version=version) == given
    assert given.encode(version) == data


@BOTH
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_at_least_one_filter_is_needed(version: int, first: int) -> None:
    assert type(refusal(packet(first, ONE, NO_LIST[version]), version=version)) is ProtocolError


@BOTH
@pytest.mark.parametrize("first", [0x82, 0xA2])
@pytest.mark.parametrize("text", [b"", b"a\x00", b"\xff", b"\xed\xbf\xbf"])
def test_filters_are_text_and_not_empty(version: int, first: int, text: bytes) -> None:
    data = packet(first, ONE, NO_LIST[version], field(text), 0)
    assert type(refusal(data, version=version)) is MalformedPacketError


@BOTH
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_packet_identifier_0_and_other_flags_are_refused(version: int, first: int) -> None:
    rest = (NO_LIST[version], field("a"), b"\x00" if first == 0x82 else b"")
    assert type(refusal(packet(first, b"\x00\x00", *rest), version=version)) is ProtocolError
    for flags in set(range(16)) - {2}:
        error = refusal(packet(first & 0xF0 | flags, ONE, *rest), version=version)
        assert type(error) is MalformedPacketError


@BOTH
def test_a_filter_without_options_is_malformed(version: int) -> None:
    data = packet(0x82, ONE, NO_LIST[version], field("a"))
    assert type(refusal(data, version=version)) is MalformedPacketError


def test_suback_carries_the_reasons_of_its_version() -> None:
    given = Suback(1, (0, 1, 2, 0x87), Properties(reason_string="one is reserved"))
    assert read(given.encode(V5), Sender.SERVER) == given
    assert read(given.encode(V3), Sender.SERVER, V3) == Suback(1, (0, 1, 2, 0x80))


@pytest.mark.parametrize("reason", range(256))
def test_exactly_the_listed_reasons_are_accepted(reason: int) -> None:
    cases: list[tuple[int, bytes, frozenset[int]]] = [
        (V3, packet(0x90, ONE, reason), frozenset((0, 1, 2, 0x80))),
        (V5, packet(0x90, ONE, 0, reason), ALLOWED[Suback.packet_type, Sender.SERVER]),
        (V5, packet(0xB0, ONE, 0, reason), ALLOWED[Unsuback.packet_type, Sender.SERVER]),
    ]
    for version, data, allowed in cases:
        if reason in allowed:
            assert isinstance(read(data, Sender.SERVER, version), Suback | Unsuback)
        else:
            assert type(refusal(data, Sender.SERVER, version)) is ProtocolError


def test_unsuback_has_reasons_in_mqtt_5_only() -> None:
    given = Unsuback(1, (0, 0x11))
    assert read(given.encode(V5), Sender.SERVER) == given
    assert given.encode(V3) == b"\xb0\x02\x00\x01"
    assert read(b"\xb0\x02\x00\x01", Sender.SERVER, V3) == Unsuback(1)


@pytest.mark.parametrize(
    ("data", "version", "error"),
    [
        (b"\x90\x02\x00\x01", V3, ProtocolError),
        (b"\x90\x03\x00\x01\x00", V5, ProtocolError),
        (b"\xb0\x03\x00\x01\x00", V5, ProtocolError),
        (b"\xb0\x03\x00\x01\x00", V3, MalformedPacketError),
        (b"\x90\x03\x00\x00\x00", V3, ProtocolError),
        (b"\xb0\x02\x00\x00", V3, ProtocolError),
    ],
)
def test_answers_that_are_refused(data: bytes, version: int, error: type[MqttError]) -> None:
    assert type(refusal(data, Sender.SERVER, version)) is error


@pytest.mark.parametrize(
    "empty", [Subscribe(1, ()), Suback(1, ()), Unsubscribe(1, ()), Unsuback(1)]
)
def test_packets_without_entries_are_not_written(empty: Packet) -> None:
    with pytest.raises(UsageError, match="without entries"):
        empty.encode(V5)
