"""CONNECT, CONNACK, PINGREQ, PINGRESP, DISCONNECT, AUTH: how a connection opens, is kept and ends.

Rules that hold here:
- The protocol name and level are judged before anything else of a CONNECT, so that a
  client of another version gets the answer it understands.
- MQTT 3.1 is read as 3.1.1 with fewer rules: it knows no reserved connect flag, it may leave
  out a user name that its flags promise, and it always names itself. Client identifiers of
  more than its 23 characters are taken, as brokers take them.
- A CONNACK's reason is in MQTT 5's numbering in both versions; 3.1.1's return codes exist
  on the wire only.
- Passwords and will payloads never show in a representation.
- Pings are empty; a reader always gives the same two objects.
- DISCONNECT without a body means reason 0; in 3.1.1 there is no other.
- AUTH exists in MQTT 5 only, and names its authentication method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from penstock.errors import UsageError
from penstock.mqtt.codes import (
    ALLOWED,
    V3,
    V5,
    V31,
    ClientIdError,
    PacketType,
    ProtocolError,
    Sender,
    TopicNameError,
    UnsupportedVersionError,
    reason_of_return_code,
    return_code_of_reason,
)
from penstock.mqtt.data_types import Cursor, encode_binary, encode_text, frame
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    WILL,
    Properties,
    encode_properties,
    encode_reason,
    read_properties,
)

_NAME = b"MQTT"
_OLD_NAME = b"MQIsdp"
_LONGEST_NAME = 6

_RESERVED = 0x01
_CLEAN_START = 0x02
_WILL = 0x04
_WILL_QOS = 0x18
_WILL_RETAIN = 0x20
_PASSWORD = 0x40
_USERNAME = 0x80


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes when the connection is lost."""

    topic: str
    payload: bytes = field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connect:
    """A client's request to open a connection."""

    packet_type: ClassVar[PacketType] = PacketType.CONNECT

    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    is_31: bool = False
    """Whether it is MQTT 3.1: its `version` is 3.1.1, but it reads no refused subscription."""

    def encode(self, version: int | None = None) -> bytes:
        """Encode for its own protocol version, or for another."""
        version = version or self.version
        if version == V3 and self.password is not None and self.username is None:
            raise UsageError("MQTT 3.1.1 has no password without user name", fix="add the name")
        flags = _CLEAN_START if self.clean_start else 0
        parts = [encode_text(self.client_id, "client identifier")]
        if self.will is not None:
            flags |= _WILL | self.will.qos << 3 | (_WILL_RETAIN if self.will.retain else 0)
            if version == V5:
                parts.append(encode_properties(self.will.properties, WILL))
            parts.append(encode_text(self.will.topic, "will topic"))
            parts.append(encode_binary(self.will.payload, "will payload"))
        if self.username is not None:
            flags |= _USERNAME
            parts.append(encode_text(self.username, "user name"))
        if self.password is not None:
            flags |= _PASSWORD
            parts.append(encode_binary(self.password, "password"))
        protocol = b"\x00\x06MQIsdp\x03" if self.is_31 else b"\x00\x04MQTT" + bytes((version,))
        head = protocol + bytes((flags,)) + self.keep_alive.to_bytes(2)
        if version == V5:
            head += encode_properties(self.properties, PacketType.CONNECT)
        return frame(0x10, head + b"".join(parts))


@dataclass(frozen=True, slots=True)
class Connack:
    """The server's answer to a CONNECT."""

    packet_type: ClassVar[PacketType] = PacketType.CONNACK

    reason: int = 0
    session_present: bool = False
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        present = 1 if self.session_present and not self.reason else 0  # MQTT5 3.2.2.1.1
        if version == V3:
            return bytes((0x20, 2, present, return_code_of_reason(self.reason)))
        properties = encode_properties(self.properties, PacketType.CONNACK)
        return frame(0x20, bytes((present, self.reason)) + properties)


def read_version(cursor: Cursor) -> int:
    """Read protocol name and level: 3.1, 3.1.1 or 5, or else an error that knows its CONNACK."""
    size = cursor.two_bytes("protocol name")
    if size > _LONGEST_NAME:
        raise cursor.malformed("protocol name is too long")
    name = cursor.take(size, "protocol name")
    level = cursor.byte("protocol level")
    if name not in {_NAME, _OLD_NAME}:  # MQTT5 3.1.2.1
        raise UnsupportedVersionError("CONNECT: the protocol name is not MQTT", level=level)
    if level not in ({V31} if name == _OLD_NAME else {V3, V5}):  # MQTT5 3.1.2.2
        raise UnsupportedVersionError(f"CONNECT: protocol level {level}", level=level)
    return level


def read_connect(cursor: Cursor, level: int) -> Connect:
    """Read what follows the protocol level of a CONNECT."""
    flags = cursor.byte("connect flags")
    is_31 = level == V31
    version = V3 if is_31 else level
    _check_flags(cursor, flags & ~_RESERVED if is_31 else flags, version)
    keep_alive = cursor.two_bytes("keep alive")
    properties = NO_PROPERTIES
    if version == V5:
        properties = read_properties(cursor, PacketType.CONNECT)
        _check_authentication("CONNECT", properties)
    client_id = cursor.text("client identifier")
    clean = bool(flags & _CLEAN_START)
    if is_31 and not client_id:  # MQTT3.1 3.1
        raise ClientIdError("CONNECT: empty client identifier")
    if version == V3 and not client_id and not clean:  # MQTT3.1.1 3.1.3.1
        raise ClientIdError("CONNECT: empty client identifier without clean session")
    will = _read_will(cursor, flags, version) if flags & _WILL else None
    if is_31 and not cursor.left:  # MQTT3.1 3.1: the length counts, whatever the flags say
        flags &= ~(_USERNAME | _PASSWORD)
    username = cursor.text("user name") if flags & _USERNAME else None
    if is_31 and not cursor.left:
        flags &= ~_PASSWORD
    password = cursor.binary("password") if flags & _PASSWORD else None
    cursor.finish()
    return Connect(
        client_id, version, clean, keep_alive, username, password, will, properties, is_31
    )


def read_connack(cursor: Cursor, version: int) -> Connack:
    """Read a CONNACK."""
    flags = cursor.byte("acknowledge flags")
    if flags > 1:  # MQTT5 3.2.2.1
        raise cursor.malformed("reserved acknowledge flags are set")
    code = cursor.byte("reason code")
    if version == V3:
        reason = reason_of_return_code(code)
        properties = NO_PROPERTIES
    else:
        reason = code if code in ALLOWED[PacketType.CONNACK, Sender.SERVER] else None
        properties = read_properties(cursor, PacketType.CONNACK)
        _check_authentication("CONNACK", properties)
    cursor.finish()
    if reason is None:
        raise ProtocolError(f"CONNACK: reason code 0x{code:02x} does not exist")
    if flags and reason:  # MQTT5 3.2.2.1.1
        raise ProtocolError("CONNACK: a refusal says that a session is present")
    return Connack(reason, bool(flags), properties)


def _check_flags(cursor: Cursor, flags: int, version: int) -> None:
    if flags & _RESERVED:  # MQTT5 3.1.2.3
        raise cursor.malformed("reserved connect flag is set")
    if not flags & _WILL and flags & (_WILL_QOS | _WILL_RETAIN):  # MQTT5 3.1.2.6, 3.1.2.7
        raise cursor.malformed("will QoS or will retain without will")
    if flags & _WILL_QOS == _WILL_QOS:  # MQTT5 3.1.2.6
        raise cursor.malformed("will QoS is 3")
    if version == V3 and flags & _PASSWORD and not flags & _USERNAME:  # MQTT3.1.1 3.1.2.9
        raise cursor.malformed("password without user name")


def _read_will(cursor: Cursor, flags: int, version: int) -> Will:
    properties = read_properties(cursor, WILL) if version == V5 else NO_PROPERTIES
    topic = cursor.text("will topic")
    if not topic or "#" in topic or "+" in topic:  # MQTT5 3.1.3.3, 4.7.1
        raise TopicNameError("CONNECT: will topic is empty or holds a wildcard")
    payload = cursor.binary("will payload")
    return Will(topic, payload, (flags & _WILL_QOS) >> 3, bool(flags & _WILL_RETAIN), properties)


def _check_authentication(packet: str, properties: Properties) -> None:
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise ProtocolError(f"{packet}: authentication data without authentication method")


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
