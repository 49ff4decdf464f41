"""The numbers of the specification: protocol versions, packet types, reason codes; the errors.

Rules that hold here:
- A packet's type is the upper half of its first byte; the lower half holds flags that
  only PUBLISH may choose.
- `Sender` is a side of the connection, not a role in a message's way: the gateway reads
  from clients with `Sender.CLIENT` and from the broker with `Sender.SERVER`.
- Packets carry plain integers in MQTT 5's numbering, whatever version they came in;
  `ReasonCode` names them. 0x80 and above mean failure.
- A code that the specification does not list for a packet, or for the side that sent it,
  is a protocol error.
- The `reason` of an error is what a DISCONNECT (or a CONNACK, where no CONNACK was sent yet)
  of MQTT 5 says; a 3.1.1 connection is closed without a word once it is established.
- The message of an error says which packet and field is wrong and at which byte of the
  packet, and never quotes what came in: payloads, passwords and topics are people's data.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import ClassVar, Final

from penstock.errors import PenstockError

V31: Final = 3
"""MQTT 3.1 by its protocol level; its packets are read and written as those of 3.1.1."""

V3: Final = 4
"""MQTT 3.1.1, by the protocol level it is known by on the wire."""

V5: Final = 5
"""MQTT 5.0."""

PACKET_SIZE_LIMIT: Final = 268_435_455
"""The largest remaining length that four bytes can say."""


class Sender(Enum):
    """The side of a connection that sent a packet."""

    CLIENT = "client"
    SERVER = "server"


class PacketType(IntEnum):
    """The fifteen packet types."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


_BOTH = frozenset(
    (
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
    )
)
_FROM_CLIENT = _BOTH | {
    PacketType.CONNECT,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
    PacketType.DISCONNECT,
}
_FROM_SERVER = _BOTH | {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}

SENDABLE: Final[dict[tuple[Sender, int], frozenset[PacketType]]] = {
    (Sender.CLIENT, V3): _FROM_CLIENT,
    (Sender.CLIENT, V5): _FROM_CLIENT | {PacketType.AUTH},
    (Sender.SERVER, V3): _FROM_SERVER,
    (Sender.SERVER, V5): _FROM_SERVER | {PacketType.DISCONNECT, PacketType.AUTH},
}
"""Which packets a side may send in a version."""

FIXED_FLAGS: Final[dict[PacketType, int]] = {
    kind: 2 if kind in {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE} else 0
    for kind in PacketType
    if kind is not PacketType.PUBLISH
}
"""The flags that every packet type but PUBLISH must carry."""

RESENT: Final = 0x08
"""The flag by which MQTT 3.1 marks what is sent again, wherever flags are not all zero."""


class ReasonCode(IntEnum):
    """Every reason code of MQTT 5; 0x00 to 0x02 have further names where they are used."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


FAILURE: Final = 0x80
"""Codes from here on say that something failed."""

_RECEIPT = frozenset((0x00, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE = frozenset((0x00, 0x92))
_GOODBYE = frozenset((0x00, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
_CONNACK = frozenset(
    {0x00, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F, *range(0x80, 0x8B)}
)
_SUBACK = frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
_UNSUBACK = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
_SERVER_GOODBYE = _GOODBYE | {
    *(0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F),
    *(0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
}

ALLOWED: Final[dict[tuple[PacketType, Sender], frozenset[int]]] = {
    (PacketType.CONNACK, Sender.SERVER): _CONNACK,
    (PacketType.PUBACK, Sender.CLIENT): _RECEIPT,
    # Only a server knows that nobody subscribes.
    (PacketType.PUBACK, Sender.SERVER): _RECEIPT | {0x10},
    (PacketType.PUBREC, Sender.CLIENT): _RECEIPT,
    (PacketType.PUBREC, Sender.SERVER): _RECEIPT | {0x10},
    (PacketType.PUBREL, Sender.CLIENT): _RELEASE,
    (PacketType.PUBREL, Sender.SERVER): _RELEASE,
    (PacketType.PUBCOMP, Sender.CLIENT): _RELEASE,
    (PacketType.PUBCOMP, Sender.SERVER): _RELEASE,
    (PacketType.SUBACK, Sender.SERVER): _SUBACK,
    (PacketType.UNSUBACK, Sender.SERVER): _UNSUBACK,
    (PacketType.DISCONNECT, Sender.CLIENT): _GOODBYE | {0x04},
    (PacketType.DISCONNECT, Sender.SERVER): _SERVER_GOODBYE,
    (PacketType.AUTH, Sender.CLIENT): frozenset((0x18, 0x19)),
    (PacketType.AUTH, Sender.SERVER): frozenset((0x00, 0x18)),
}
"""The reason codes that a packet may carry, by the side that sends it."""

V3_SUBACK_FAILURE: Final = 0x80
V3_SUBACK_CODES: Final = frozenset((0x00, 0x01, 0x02, V3_SUBACK_FAILURE))

_FROM_RETURN_CODE = (0x00, 0x84, 0x85, 0x88, 0x86, 0x87)
_UNAVAILABLE = 3
_TO_RETURN_CODE = {code: number for number, code in enumerate(_FROM_RETURN_CODE)} | {
    0x8A: 5,  # banned: not authorised
    0x8C: 4,  # the credentials cannot be judged
    0x90: 5,  # 0x90 to 0x9B speak of a will that is not accepted
    0x99: 5,
    0x9A: 5,
    0x9B: 5,
}


def reason_of_return_code(code: int) -> int | None:
    """Give the reason code that a 3.1.1 CONNACK return code stands for, if it is one."""
    return _FROM_RETURN_CODE[code] if code < len(_FROM_RETURN_CODE) else None


def return_code_of_reason(reason: int) -> int:
    """Give the 3.1.1 CONNACK return code that is nearest to a reason code."""
    return _TO_RETURN_CODE.get(reason, _UNAVAILABLE)


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
        super().__init__(message, fix="connect with MQTT 3.1, 3.1.1 or 5.0")
        self.level = level

    def connack(self) -> bytes:
        """Encode the refusal in the form that a client of this level understands.

        Older clients (and bridges, which set the highest bit) expect the two bytes of
        3.1 and 3.1.1; newer ones the form of MQTT 5.
        """
        if V5 < self.level < self._BRIDGE_BIT:
            return b"\x20\x03\x00\x84\x00"
        return b"\x20\x02\x00\x01"
