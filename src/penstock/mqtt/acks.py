"""PUBACK, PUBREC, PUBREL and PUBCOMP: the steps of QoS 1 and 2.

Rules that hold here:
- 3.1.1 has only the packet identifier; reason and properties are MQTT 5's, and are left
  out on the wire where they say nothing.
- The four differ in type, first byte and allowed reasons only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from penstock.mqtt.codes import ALLOWED, FAILURE, V3, V5, PacketType, Sender
from penstock.mqtt.data_types import Cursor, encode_packet_id, frame
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    encode_reason,
    read_properties,
)

PUBACK_SIZE: Final = 4
"""The bytes of a PUBACK that says nothing but its packet identifier."""
_PLAIN_BODY: Final = 2
_NOBODY_SUBSCRIBES: Final = 0x10


@dataclass(slots=True)
class Ack:
    """What the four have in common."""

    packet_type: ClassVar[PacketType]
    first: ClassVar[int]

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES

    @property
    def failed(self) -> bool:
        """Whether the reason says that the step failed, which ends the exchange."""
        return self.reason >= FAILURE

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        body = encode_packet_id(self.packet_id)
        if version == V5:
            body += encode_reason(self.reason, self.properties, self.packet_type)
        return frame(self.first, body)


@dataclass(slots=True)
class Puback(Ack):
    """Ends a QoS 1 exchange."""

    packet_type: ClassVar[PacketType] = PacketType.PUBACK
    first: ClassVar[int] = 0x40


@dataclass(slots=True)
class Pubrec(Ack):
    """Says that a QoS 2 message was received."""

    packet_type: ClassVar[PacketType] = PacketType.PUBREC
    first: ClassVar[int] = 0x50


@dataclass(slots=True)
class Pubrel(Ack):
    """Lets the receiver of a QoS 2 message forget its packet identifier."""

    packet_type: ClassVar[PacketType] = PacketType.PUBREL
    first: ClassVar[int] = 0x62


@dataclass(slots=True)
class Pubcomp(Ack):
    """Ends a QoS 2 exchange."""

    packet_type: ClassVar[PacketType] = PacketType.PUBCOMP
    first: ClassVar[int] = 0x70


_A = TypeVar("_A", bound=Ack)


def read_ack(cursor: Cursor, version: int, sender: Sender, kind: type[_A]) -> _A:
    """Read one of the four."""
    packet_id = cursor.packet_id()
    if version == V3 or not cursor.left:  # MQTT5 3.4.2.1
        cursor.finish()
        return kind(packet_id)
    reason = cursor.byte("reason code")
    if reason == _NOBODY_SUBSCRIBES and sender is Sender.CLIENT and kind in (Puback, Pubrec):
        # Only a server knows it (MQTT5 3.4.2.1), but a bridge is a server, too, and says it. Read
        # as success, which it is: the broker behind us need not be as lenient.
        reason = 0
    if reason not in ALLOWED[kind.packet_type, sender]:
        raise cursor.forbidden(f"reason code 0x{reason:02x} is not one of this packet's")
    properties = NO_PROPERTIES
    if cursor.left:
        properties = read_properties(cursor, kind.packet_type)
        cursor.finish()
    return kind(packet_id, reason, properties)


def find_puback(data: bytes, at: int) -> int:
    """Return the packet identifier of a plain PUBACK, if there is a whole one; else 0."""
    if data[at] != Puback.first or len(data) - at < PUBACK_SIZE or data[at + 1] != _PLAIN_BODY:
        return 0
    return data[at + 2] << 8 | data[at + 3]


def encode_puback(packet_id: int) -> bytes:
    """Encode a plain PUBACK, the same in both versions."""
    return b"\x40\x02" + packet_id.to_bytes(2)


def encode_pubrec(packet_id: int) -> bytes:
    """Encode a plain PUBREC, the same in both versions."""
    return b"\x50\x02" + packet_id.to_bytes(2)


def encode_pubrel(packet_id: int) -> bytes:
    """Encode a plain PUBREL, the same in both versions."""
    return b"\x62\x02" + packet_id.to_bytes(2)


def encode_pubcomp(packet_id: int) -> bytes:
    """Encode a plain PUBCOMP, the same in both versions."""
    return b"\x70\x02" + packet_id.to_bytes(2)
