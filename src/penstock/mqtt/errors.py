"""What can be wrong with packets, each error with the reason code to answer with.

Rules that hold here:
- `reason` is what a DISCONNECT (or a CONNACK, where no CONNACK was sent yet) of MQTT 5
  says; a 3.1.1 connection is closed without a word once it is established.
- A message says which packet and field is wrong and at which byte of the packet, and
  never quotes what came in: payloads, passwords and topics are people's data.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.errors import PenstockError
from penstock.mqtt.codes import V5, ReasonCode


class MqttError(PenstockError):
    """The other side broke a rule of MQTT; the connection cannot go on."""

    default: ClassVar[ReasonCode] = ReasonCode.UNSPECIFIED_ERROR

    def __init__(
        self, message: str, *, reason: ReasonCode | None = None, fix: str | None = None
    ) -> None:
        super().__init__(message, fix=fix)
        self.reason = self.default if reason is None else reason


class MalformedPacketError(MqttError):
    """Bytes that cannot be read as a packet."""

    default = ReasonCode.MALFORMED_PACKET


class ProtocolError(MqttError):
    """A packet that can be read but is not allowed, or not now."""

    default = ReasonCode.PROTOCOL_ERROR


class PacketTooLargeError(MqttError):
    """A packet longer than the receiver said it takes."""

    default = ReasonCode.PACKET_TOO_LARGE


class TopicNameError(MqttError):
    """A topic name that nothing can be published to."""

    default = ReasonCode.TOPIC_NAME_INVALID


class TopicAliasError(MqttError):
    """A topic alias of 0, above the maximum, or never introduced."""

    default = ReasonCode.TOPIC_ALIAS_INVALID


class ReceiveMaximumError(MqttError):
    """More QoS 1 and 2 messages in flight than the receiver said it takes."""

    default = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


class ClientIdError(MqttError):
    """A client identifier that cannot be accepted."""

    default = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


class UnsupportedVersionError(MqttError):
    """A CONNECT of another protocol or of a version that is not spoken here."""

    default = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    _BRIDGE_BIT: ClassVar[int] = 0x80

    def __init__(self, message: str, *, level: int) -> None:
        super().__init__(message, fix="connect with MQTT 3.1.1 or 5.0")
        self.level = level

    def connack(self) -> bytes:
        """Encode the refusal in the form that a client of this level understands.

        Older clients (and bridges, which set the highest bit) expect the two bytes of
        3.1 and 3.1.1; newer ones the form of MQTT 5.
        """
        if V5 < self.level < self._BRIDGE_BIT:
            return b"\x20\x03\x00\x84\x00"
        return b"\x20\x02\x00\x01"
