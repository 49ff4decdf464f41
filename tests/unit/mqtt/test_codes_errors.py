import pytest

from penstock.errors import PenstockError
from penstock.mqtt import (
    ClientIdError,
    MalformedPacketError,
    MqttError,
    PacketTooLargeError,
    ProtocolError,
    ReasonCode,
    ReceiveMaximumError,
    TopicAliasError,
    TopicNameError,
    UnsupportedVersionError,
)

REASONS: dict[type[MqttError], int] = {
    MqttError: 0x80,
    MalformedPacketError: 0x81,
    ProtocolError: 0x82,
    ClientIdError: 0x85,
    TopicNameError: 0x90,
    ReceiveMaximumError: 0x93,
    TopicAliasError: 0x94,
    PacketTooLargeError: 0x95,
}


@pytest.mark.parametrize(("kind", "reason"), REASONS.items())
def test_each_error_knows_the_reason_to_answer_with(kind: type[MqttError], reason: int) -> None:
    error = kind("text")
    assert isinstance(error, PenstockError)
    assert error.reason == reason
    assert kind("text", reason=ReasonCode.QUOTA_EXCEEDED).reason == 0x97


def test_an_unsupported_version_names_the_fix() -> None:
    error = UnsupportedVersionError("CONNECT: protocol level 2", level=2)
    assert error.reason == 0x84
    assert str(error) == "CONNECT: protocol level 2 → connect with MQTT 3.1, 3.1.1 or 5.0"
