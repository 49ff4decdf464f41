import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    PINGREQ,
    PINGRESP,
    V3,
    V5,
    Auth,
    Disconnect,
    MalformedPacketError,
    MqttError,
    Properties,
    ProtocolError,
    Sender,
)
from penstock.mqtt.codes import ALLOWED
from tests.support.mqtt.packets import field, packet, read, refusal

METHOD = Properties(authentication_method="SCRAM", authentication_data=b"\x01")


@pytest.mark.parametrize("version", [V3, V5])
def test_pings_are_empty(version: int) -> None:
    assert read(b"\xc0\x00", version=version) is PINGREQ
    assert read(b"\xd0\x00", Sender.SERVER, version) is PINGRESP
    assert PINGREQ.encode(version) == b"\xc0\x00"
    assert PINGRESP.encode(version) == b"\xd0\x00"
    assert type(refusal(b"\xc0\x01\x00", version=version)) is MalformedPacketError
    assert type(refusal(b"\xd0\x01\x00", Sender.SERVER, version)) is MalformedPacketError
    assert type(refusal(b"\xc1\x00", version=version)) is MalformedPacketError


def test_disconnect_of_3_1_1_is_empty_and_from_clients() -> None:
    assert read(b"\xe0\x00", version=V3) == Disconnect()
    assert type(refusal(b"\xe0\x01\x00", version=V3)) is MalformedPacketError
    assert type(refusal(b"\xe0\x00", Sender.SERVER, V3)) is ProtocolError
    assert Disconnect(0x8E).encode(V3) == b"\xe0\x00"


def test_disconnect_in_all_its_lengths() -> None:
    assert read(b"\xe0\x00") == read(b"\xe0\x01\x00") == read(b"\xe0\x02\x00\x00") == Disconnect()
    assert Disconnect().encode(V5) == b"\xe0\x00"
    assert Disconnect(4).encode(V5) == b"\xe0\x01\x04"
    given = Disconnect(0x8E, Properties(reason_string="taken over"))
    assert read(given.encode(V5), Sender.SERVER) == given


@pytest.mark.parametrize("sender", Sender)
@pytest.mark.parametrize("reason", range(256))
def test_each_side_has_its_reasons(sender: Sender, reason: int) -> None:
    data = bytes((0xE0, 1, reason))
    if reason in ALLOWED[Disconnect.packet_type, sender]:
        assert read(data, sender) == Disconnect(reason)
    else:
        assert type(refusal(data, sender)) is ProtocolError


def test_servers_do_not_send_a_session_expiry() -> None:
    given = Disconnect(0, Properties(session_expiry=0))
    assert read(given.encode(V5)) == given
    assert type(refusal(given.encode(V5), Sender.SERVER)) is ProtocolError


def test_bytes_behind_the_properties_are_malformed() -> None:
    assert type(refusal(b"\xe0\x03\x00\x00\x00")) is MalformedPacketError


@pytest.mark.parametrize(
    ("reason", "sender"),
    [(0x18, Sender.CLIENT), (0x18, Sender.SERVER), (0x19, Sender.CLIENT), (0x00, Sender.SERVER)],
)
def test_auth(reason: int, sender: Sender) -> None:
    given = Auth(reason, METHOD)
    assert read(given.encode(V5), sender) == given


def test_auth_without_body_is_the_servers_success() -> None:
    assert read(b"\xf0\x00", Sender.SERVER) == Auth()
    assert Auth().encode(V5) == b"\xf0\x00"
    assert type(refusal(b"\xf0\x00")) is ProtocolError


@pytest.mark.parametrize(
    ("data", "sender", "error"),
    [
        (Auth(0x19, METHOD).encode(V5), Sender.SERVER, ProtocolError),
        (Auth(0x00, METHOD).encode(V5), Sender.CLIENT, ProtocolError),
        (Auth(0x87, METHOD).encode(V5), Sender.SERVER, ProtocolError),
        (b"\xf0\x01\x18", Sender.CLIENT, MalformedPacketError),
        (b"\xf0\x02\x18\x00", Sender.CLIENT, ProtocolError),
        (packet(0xF0, 0x18, 4, b"\x15", field("m"), 0), Sender.CLIENT, MalformedPacketError),
        (b"\xf1\x00", Sender.SERVER, MalformedPacketError),
    ],
)
def test_auths_that_are_refused(data: bytes, sender: Sender, error: type[MqttError]) -> None:
    assert type(refusal(data, sender)) is error


def test_auth_is_not_for_3_1_1() -> None:
    for sender in Sender:
        assert type(refusal(b"\xf0\x00", sender, V3)) is ProtocolError
    with pytest.raises(UsageError, match="no AUTH"):
        Auth().encode(V3)
