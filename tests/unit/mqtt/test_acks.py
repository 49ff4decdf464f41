import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    V3,
    V5,
    MalformedPacketError,
    Properties,
    ProtocolError,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Sender,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
    encode_pubrel,
)
from penstock.mqtt.acks import Ack
from penstock.mqtt.codes import ALLOWED
from tests.support.mqtt.packets import field, packet, read, refusal

KINDS = [Puback, Pubrec, Pubrel, Pubcomp]
EACH = pytest.mark.parametrize("kind", KINDS)
BOTH_SIDES = pytest.mark.parametrize("sender", Sender)


@EACH
@BOTH_SIDES
@pytest.mark.parametrize("version", [V3, V5])
def test_a_plain_acknowledgement_is_the_same_in_both_versions(
    kind: type[Ack], sender: Sender, version: int
) -> None:
    data = bytes((kind.first, 2, 0x12, 0x34))
    found = read(data, sender, version)
    assert type(found) is kind
    assert found == kind(0x1234)
    assert found.encode(version) == data


def test_plain_acknowledgements_have_encoders_of_their_own() -> None:
    writers = (encode_puback, encode_pubrec, encode_pubrel, encode_pubcomp)
    for kind, write in zip(KINDS, writers, strict=True):
        assert write(515) == kind(515).encode(V3) == kind(515).encode(V5)


@EACH
@BOTH_SIDES
def test_exactly_the_listed_reasons_are_accepted(kind: type[Ack], sender: Sender) -> None:
    for reason in range(256):
        short = packet(kind.first, b"\x00\x01", reason)
        long = packet(kind.first, b"\x00\x01", reason, 0)
        if reason == 0x10 and sender is Sender.CLIENT and kind in {Puback, Pubrec}:
            continue
        if reason in ALLOWED[kind.packet_type, sender]:
            assert read(short, sender) == read(long, sender) == kind(1, reason)
        else:
            assert type(refusal(short, sender)) is ProtocolError
            assert type(refusal(long, sender)) is ProtocolError


@pytest.mark.parametrize("kind", [Puback, Pubrec])
def test_a_client_that_says_that_nobody_subscribes_is_read_as_success(kind: type[Ack]) -> None:
    """Only servers know that (MQTT5 3.4.2.1), but bridges are servers, too, and say it."""
    data = bytes((kind.first, 3, 0, 1, 0x10))
    assert read(data, Sender.SERVER) == kind(1, 0x10)
    assert read(data, Sender.CLIENT) == kind(1)


@EACH
def test_reason_and_properties_survive(kind: type[Ack]) -> None:
    given = kind(7, 0x92 if kind in {Pubrel, Pubcomp} else 0x87, Properties(reason_string="no"))
    assert read(given.encode(V5)) == given
    assert given.failed
    assert given.encode(V3) == bytes((kind.first, 2, 0, 7))


@EACH
def test_a_reason_alone_needs_three_bytes(kind: type[Ack]) -> None:
    assert kind(7, 0x92).encode(V5) == bytes((kind.first, 3, 0, 7, 0x92))


@EACH
@pytest.mark.parametrize("version", [V3, V5])
def test_acknowledgements_that_are_refused(kind: type[Ack], version: int) -> None:
    first = kind.first
    assert type(refusal(bytes((first, 2, 0, 0)), version=version)) is ProtocolError
    assert type(refusal(bytes((first, 0)), version=version)) is MalformedPacketError
    assert type(refusal(bytes((first, 1, 1)), version=version)) is MalformedPacketError
    assert type(refusal(bytes((first ^ 1, 2, 0, 1)), version=version)) is MalformedPacketError
    assert type(refusal(bytes((first ^ 2, 2, 0, 1)), version=version)) is MalformedPacketError


@EACH
def test_3_1_1_has_nothing_behind_the_packet_identifier(kind: type[Ack]) -> None:
    assert type(refusal(bytes((kind.first, 3, 0, 1, 0)), version=V3)) is MalformedPacketError


@EACH
def test_bytes_behind_the_properties_are_malformed(kind: type[Ack]) -> None:
    data = packet(kind.first, b"\x00\x01", 0, 0, 0)
    assert type(refusal(data)) is MalformedPacketError
    data = packet(kind.first, b"\x00\x01", 0, 5, b"\x1f", field("no"), b"!")
    assert type(refusal(data)) is MalformedPacketError


def test_packet_identifier_0_is_not_written() -> None:
    with pytest.raises(UsageError):
        Puback(0).encode(V5)
