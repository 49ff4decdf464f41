"""PINGREQ, PINGRESP, DISCONNECT and AUTH: how a connection is kept, ended and proven.

Rules that hold here:
- Pings are empty; a reader always gives the same two objects.
- DISCONNECT without a body means reason 0; in 3.1.1 there is no other.
- AUTH exists in MQTT 5 only, and names its authentication method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import UsageError
from penstock.mqtt.codes import ALLOWED, V3, PacketType, Sender
from penstock.mqtt.data_types import Cursor, frame
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    encode_reason,
    read_properties,
)


@dataclass(frozen=True, slots=True)
class Pingreq:
    """A client's sign of life."""

    packet_type: ClassVar[PacketType] = PacketType.PINGREQ

    def encode(self, _version: int) -> bytes:
        """Encode, the same in both versions."""
        return b"\xc0\x00"


@dataclass(frozen=True, slots=True)
class Pingresp:
    """The server's answer to a PINGREQ."""

    packet_type: ClassVar[PacketType] = PacketType.PINGRESP

    def encode(self, _version: int) -> bytes:
        """Encode, the same in both versions."""
        return b"\xd0\x00"


PINGREQ: Final = Pingreq()
PINGRESP: Final = Pingresp()


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The last packet of a connection."""

    packet_type: ClassVar[PacketType] = PacketType.DISCONNECT

    reason: int = 0
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        if version == V3:
            return b"\xe0\x00"
        return frame(0xE0, encode_reason(self.reason, self.properties, PacketType.DISCONNECT))


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of an extended authentication."""

    packet_type: ClassVar[PacketType] = PacketType.AUTH

    reason: int = 0
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for MQTT 5."""
        if version == V3:
            raise UsageError("MQTT 3.1.1 has no AUTH", fix="close the connection instead")
        return frame(0xF0, encode_reason(self.reason, self.properties, PacketType.AUTH))


def read_pingreq(cursor: Cursor) -> Pingreq:
    """Read a PINGREQ."""
    cursor.finish()
    return PINGREQ


def read_pingresp(cursor: Cursor) -> Pingresp:
    """Read a PINGRESP."""
    cursor.finish()
    return PINGRESP


def read_disconnect(cursor: Cursor, version: int, sender: Sender) -> Disconnect:
    """Read a DISCONNECT."""
    if version == V3 or not cursor.left:  # MQTT5 3.14.2.1
        cursor.finish()
        return Disconnect()
    reason = _read_reason(cursor, PacketType.DISCONNECT, sender)
    properties = NO_PROPERTIES
    if cursor.left:
        properties = read_properties(cursor, PacketType.DISCONNECT)
        cursor.finish()
    if sender is Sender.SERVER and properties.session_expiry is not None:  # MQTT5 3.14.2.2.2
        raise cursor.forbidden("a server sent a session expiry interval")
    return Disconnect(reason, properties)


def read_auth(cursor: Cursor, sender: Sender) -> Auth:
    """Read an AUTH."""
    if not cursor.left:
        # Short for reason 0, which only servers may send: MQTT5 3.15.2.1.
        if sender is Sender.CLIENT:
            raise cursor.forbidden("reason code 0x00 is not one that clients send")
        return Auth()
    reason = _read_reason(cursor, PacketType.AUTH, sender)
    properties = read_properties(cursor, PacketType.AUTH)
    cursor.finish()
    if properties.authentication_method is None:  # MQTT5 3.15.2.2.2
        raise cursor.forbidden("no authentication method")
    return Auth(reason, properties)


def _read_reason(cursor: Cursor, kind: PacketType, sender: Sender) -> int:
    reason = cursor.byte("reason code")
    if reason not in ALLOWED[kind, sender]:
        raise cursor.forbidden(f"reason code 0x{reason:02x} is not one that a {sender.value} sends")
    return reason
