"""What packets exist, who may send them, and which protocol versions there are.

Rules that hold here:
- A packet's type is the upper half of its first byte; the lower half holds flags that
  only PUBLISH may choose.
- `Sender` is a side of the connection, not a role in a message's way: the gateway reads
  from clients with `Sender.CLIENT` and from the broker with `Sender.SERVER`.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

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
