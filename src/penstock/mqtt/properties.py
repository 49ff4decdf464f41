"""The properties of MQTT 5: which exist, where they may stand, and what they may say.

Rules that hold here:
- `TABLE` is the only place that knows a property's identifier, type and packets; reading,
  writing and checking follow it.
- A property that is unknown, or that its packet may not carry, makes the packet malformed;
  one that stands twice, or whose value is out of range, is a protocol error.
- `Properties` never changes; packets without properties share `NO_PROPERTIES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

from penstock.errors import UsageError, quote
from penstock.mqtt.errors import TopicAliasError, TopicNameError
from penstock.mqtt.kinds import PACKET_SIZE_LIMIT, PacketType
from penstock.mqtt.wire import (
    FIELD_LIMIT,
    Cursor,
    encode_binary,
    encode_text,
    encode_varint,
)

Place = PacketType | Literal["will"]
"""Where a property stands: in a packet, or in the will that a CONNECT carries."""

WILL: Final = "will"

UserProperties = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a packet says beside its fields; None where it says nothing."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user: UserProperties = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifiers_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:
        # Only names: values such as authentication data do not belong in logs.
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"Properties({', '.join(given)})"


NO_PROPERTIES: Final = Properties()

Kind = Literal["flag", "two", "four", "varint", "text", "topic", "binary", "pair"]


class Rule(NamedTuple):
    """What holds for one property."""

    name: str
    kind: Kind
    places: frozenset[Place]
    least: int = 0
    repeated: frozenset[Place] = frozenset()


_ACKS = (
    *(PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP),
    *(PacketType.SUBACK, PacketType.UNSUBACK),
)
_MESSAGE: frozenset[Place] = frozenset((PacketType.PUBLISH, WILL))
_CONNECT: frozenset[Place] = frozenset((PacketType.CONNECT,))
_CONNACK: frozenset[Place] = frozenset((PacketType.CONNACK,))
_OPENING = _CONNECT | _CONNACK
_PUBLISH: frozenset[Place] = frozenset((PacketType.PUBLISH,))
_REASONED: frozenset[Place] = frozenset(
    (PacketType.CONNACK, *_ACKS, PacketType.DISCONNECT, PacketType.AUTH)
)
_ANYWHERE: frozenset[Place] = _REASONED | {
    *(PacketType.CONNECT, PacketType.PUBLISH, WILL),
    *(PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE),
}

TABLE: Final[dict[int, Rule]] = {
    0x01: Rule("payload_format", "flag", _MESSAGE),
    0x02: Rule("message_expiry", "four", _MESSAGE),
    0x03: Rule("content_type", "text", _MESSAGE),
    0x08: Rule("response_topic", "topic", _MESSAGE),
    0x09: Rule("correlation_data", "binary", _MESSAGE),
    0x0B: Rule(
        "subscription_identifiers",
        "varint",
        _PUBLISH | {PacketType.SUBSCRIBE},
        least=1,
        repeated=_PUBLISH,
    ),
    0x11: Rule("session_expiry", "four", _OPENING | {PacketType.DISCONNECT}),
    0x12: Rule("assigned_client_id", "text", _CONNACK),
    0x13: Rule("server_keep_alive", "two", _CONNACK),
    0x15: Rule("authentication_method", "text", _OPENING | {PacketType.AUTH}),
    0x16: Rule("authentication_data", "binary", _OPENING | {PacketType.AUTH}),
    0x17: Rule("request_problem_information", "flag", _CONNECT),
    0x18: Rule("will_delay", "four", frozenset((WILL,))),
    0x19: Rule("request_response_information", "flag", _CONNECT),
    0x1A: Rule("response_information", "text", _CONNACK),
    0x1C: Rule("server_reference", "text", _CONNACK | {PacketType.DISCONNECT}),
    0x1F: Rule("reason_string", "text", _REASONED),
    0x21: Rule("receive_maximum", "two", _OPENING, least=1),
    0x22: Rule("topic_alias_maximum", "two", _OPENING),
    0x23: Rule("topic_alias", "two", _PUBLISH, least=1),
    0x24: Rule("maximum_qos", "flag", _CONNACK),
    0x25: Rule("retain_available", "flag", _CONNACK),
    0x26: Rule("user", "pair", _ANYWHERE, repeated=_ANYWHERE),
    0x27: Rule("maximum_packet_size", "four", _OPENING, least=1),
    0x28: Rule("wildcard_subscription_available", "flag", _CONNACK),
    0x29: Rule("subscription_identifiers_available", "flag", _CONNACK),
    0x2A: Rule("shared_subscription_available", "flag", _CONNACK),
}

USER: Final = 0x26
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
TOPIC_ALIAS: Final = 0x23

_IDENTIFIERS = {rule.name: identifier for identifier, rule in TABLE.items()}
_MOST = {"flag": 1, "two": FIELD_LIMIT, "four": 0xFFFF_FFFF, "varint": PACKET_SIZE_LIMIT}
_WIDTH = {"flag": 1, "two": 2, "four": 4}


class Item(NamedTuple):
    """One property as it stood in a packet, with its bytes."""

    identifier: int
    rule: Rule
    value: Any
    data: bytes


def scan(cursor: Cursor, end: int, place: Place) -> list[Item]:
    """Read the properties up to a byte of the packet, checking each by the table."""
    items: list[Item] = []
    seen: set[int] = set()
    while cursor.at < end:
        start = cursor.at
        identifier = cursor.byte("property identifier")
        rule = TABLE.get(identifier)
        if rule is None or place not in rule.places:
            cursor.at = start
            what = "is unknown" if rule is None else f"({rule.name}) does not belong here"
            raise cursor.malformed(f"property 0x{identifier:02x} {what}")
        if identifier in seen and place not in rule.repeated:
            cursor.at = start
            raise cursor.forbidden(f"property {rule.name} stands twice")
        seen.add(identifier)
        value = _read_value(cursor, rule)
        if cursor.at > end:
            raise cursor.malformed(f"property {rule.name} is cut off by the property length")
        items.append(Item(identifier, rule, value, cursor.since(start)))
    return items


def read_properties(cursor: Cursor, place: Place) -> Properties:
    """Read a property list with its length."""
    size = cursor.varint("property length")
    if not size:
        return NO_PROPERTIES
    if size > cursor.left:
        raise cursor.malformed(f"property length is {size}, {cursor.left} bytes are left")
    values: dict[str, Any] = {}
    for _, rule, value, _ in scan(cursor, cursor.at + size, place):
        if rule.repeated or rule.kind == "varint":
            values[rule.name] = (*values.get(rule.name, ()), value)
        else:
            values[rule.name] = value
    return Properties(**values)


def encode_items(properties: Properties, place: Place) -> bytes:
    """Encode properties without the length of the list."""
    if properties is NO_PROPERTIES:
        return b""
    out: list[bytes] = []
    for field in fields(properties):
        value = getattr(properties, field.name)
        if value == field.default:
            continue
        identifier = _IDENTIFIERS[field.name]
        rule = TABLE[identifier]
        if place not in rule.places:
            raise UsageError(
                f"property {rule.name} does not belong in {_name(place)}", fix="leave it out"
            )
        values = value if rule.repeated or rule.kind == "varint" else (value,)
        if len(values) > 1 and place not in rule.repeated:
            raise UsageError(f"property {rule.name} stands once in {_name(place)}", fix="keep one")
        out.extend(bytes((identifier,)) + _encode_value(rule, one) for one in values)
    return b"".join(out)


def encode_properties(properties: Properties, place: Place) -> bytes:
    """Encode a property list with its length."""
    data = encode_items(properties, place)
    return encode_varint(len(data)) + data


def encode_user_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode user properties alone, to be put behind a message's own properties."""
    return b"".join(b"\x26" + _encode_value(TABLE[USER], pair) for pair in pairs)


def encode_subscription_identifiers(numbers: Iterable[int]) -> bytes:
    """Encode subscription identifiers alone, to be put behind a message's own properties."""
    rule = TABLE[SUBSCRIPTION_IDENTIFIER]
    return b"".join(b"\x0b" + _encode_value(rule, number) for number in numbers)


def _read_value(cursor: Cursor, rule: Rule) -> int | str | bytes | tuple[str, str]:
    name = rule.name
    match rule.kind:
        case "text":
            return cursor.text(name)
        case "binary":
            return cursor.binary(name)
        case "pair":
            return cursor.text("user property name"), cursor.text("user property value")
        case "topic":
            topic = cursor.text(name)
            if not topic or "#" in topic or "+" in topic:
                raise TopicNameError(f"{cursor.packet}: {name} is no topic ({cursor.place()})")
            return topic
        case "varint":
            number = cursor.varint(name)
        case width:
            number = int.from_bytes(cursor.take(_WIDTH[width], name))
    if not rule.least <= number <= _MOST[rule.kind]:
        if name == "topic_alias":
            raise TopicAliasError(f"{cursor.packet}: topic alias is 0 ({cursor.place()})")
        raise cursor.forbidden(f"property {name} is {number}, which is out of range")
    return number


def _encode_value(rule: Rule, value: Any) -> bytes:
    match rule.kind:
        case "text" | "topic":
            return encode_text(value, rule.name)
        case "binary":
            return encode_binary(value, rule.name)
        case "pair":
            return encode_text(value[0], "user property name") + encode_text(
                value[1], "user property value"
            )
    if not rule.least <= value <= _MOST[rule.kind]:
        raise UsageError(
            f"property {rule.name} is {quote(value)}",
            fix=f"use {rule.least} to {_MOST[rule.kind]}",
        )
    if rule.kind == "varint":
        return encode_varint(value)
    return int(value).to_bytes(_WIDTH[rule.kind])


def _name(place: Place) -> str:
    return place.name if isinstance(place, PacketType) else f"a {place}"
