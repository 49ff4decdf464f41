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

from penstock.errors import UsageError
from penstock.mqtt import data_types
from penstock.mqtt.codes import MalformedPacketError, MqttError, PacketType, ProtocolError
from penstock.mqtt.data_types import Cursor, ValueType, encode_varint

Place = PacketType | Literal["will"]
"""Where a property stands: in a packet, or in the will that a CONNECT carries."""

WILL: Final = "will"

UserProperties = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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


class PropertyRule(NamedTuple):
    """What holds for one property: its name, its type, and where it may stand."""

    name: str
    type: ValueType
    places: frozenset[Place]
    repeated: frozenset[Place] = frozenset()

    @property
    def many(self) -> bool:
        """Whether `Properties` keeps a tuple of values, as some packet can repeat it."""
        return bool(self.repeated)


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

USER: Final = 0x26
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
TOPIC_ALIAS: Final = 0x23

TABLE: Final[dict[int, PropertyRule]] = {
    0x01: PropertyRule("payload_format", data_types.FLAG, _MESSAGE),
    0x02: PropertyRule("message_expiry", data_types.FOUR_BYTES, _MESSAGE),
    0x03: PropertyRule("content_type", data_types.TEXT, _MESSAGE),
    0x08: PropertyRule("response_topic", data_types.TOPIC, _MESSAGE),
    0x09: PropertyRule("correlation_data", data_types.BINARY, _MESSAGE),
    SUBSCRIPTION_IDENTIFIER: PropertyRule(
        "subscription_identifiers",
        data_types.VARINT_NOT_ZERO,
        _PUBLISH | {PacketType.SUBSCRIBE},
        repeated=_PUBLISH,
    ),
    0x11: PropertyRule("session_expiry", data_types.FOUR_BYTES, _OPENING | {PacketType.DISCONNECT}),
    0x12: PropertyRule("assigned_client_id", data_types.TEXT, _CONNACK),
    0x13: PropertyRule("server_keep_alive", data_types.TWO_BYTES, _CONNACK),
    0x15: PropertyRule("authentication_method", data_types.TEXT, _OPENING | {PacketType.AUTH}),
    0x16: PropertyRule("authentication_data", data_types.BINARY, _OPENING | {PacketType.AUTH}),
    0x17: PropertyRule("request_problem_information", data_types.FLAG, _CONNECT),
    0x18: PropertyRule("will_delay", data_types.FOUR_BYTES, frozenset((WILL,))),
    0x19: PropertyRule("request_response_information", data_types.FLAG, _CONNECT),
    0x1A: PropertyRule("response_information", data_types.TEXT, _CONNACK),
    0x1C: PropertyRule("server_reference", data_types.TEXT, _CONNACK | {PacketType.DISCONNECT}),
    0x1F: PropertyRule("reason_string", data_types.TEXT, _REASONED),
    0x21: PropertyRule("receive_maximum", data_types.TWO_BYTES_NOT_ZERO, _OPENING),
    0x22: PropertyRule("topic_alias_maximum", data_types.TWO_BYTES, _OPENING),
    TOPIC_ALIAS: PropertyRule("topic_alias", data_types.TOPIC_ALIAS, _PUBLISH),
    0x24: PropertyRule("maximum_qos", data_types.FLAG, _CONNACK),
    0x25: PropertyRule("retain_available", data_types.FLAG, _CONNACK),
    USER: PropertyRule("user", data_types.PAIR, _ANYWHERE, repeated=_ANYWHERE),
    0x27: PropertyRule("maximum_packet_size", data_types.FOUR_BYTES_NOT_ZERO, _OPENING),
    0x28: PropertyRule("wildcard_subscription_available", data_types.FLAG, _CONNACK),
    0x29: PropertyRule("subscription_identifiers_available", data_types.FLAG, _CONNACK),
    0x2A: PropertyRule("shared_subscription_available", data_types.FLAG, _CONNACK),
}

_IDENTIFIERS = {rule.name: identifier for identifier, rule in TABLE.items()}
_READS = {
    place: {
        identifier: (rule.name, rule.type.read, place not in rule.repeated)
        for identifier, rule in TABLE.items()
        if place in rule.places
    }
    for place in _ANYWHERE
}

Item = tuple[int, Any, bytes]
"""One property as it stood in a packet: identifier, value, and all its bytes."""


def scan(packet: str, raw: bytes, place: Place) -> list[Item]:
    """Read a property list without its length, checking each by the table."""
    reads = _READS[place]
    items: list[Item] = []
    seen: set[int] = set()
    at = 0
    end = len(raw)
    name = ""
    try:
        while at < end:
            identifier = raw[at]
            if identifier not in reads:  # MQTT5 2.2.2.2
                raise MalformedPacketError(f"0x{identifier:02x} does not belong here")
            name, read, once = reads[identifier]
            if once:
                if identifier in seen:  # MQTT5 2.2.2.2
                    raise ProtocolError("stands twice")
                seen.add(identifier)
            value, stop = read(raw, at + 1)
            if stop > end:
                raise MalformedPacketError("is cut off")
            items.append((identifier, value, raw[at:stop]))
            at = stop
            name = ""
    except MqttError as error:
        text = error.message
        raise type(error)(f"{packet}: {_property(name)} {text} ({_behind(at)})") from None
    except IndexError:
        text = f"{packet}: {_property(name)} is cut off ({_behind(at)})"
        raise MalformedPacketError(text) from None
    except UnicodeDecodeError:
        text = f"{packet}: {_property(name)} is ill-formed UTF-8 ({_behind(at)})"
        raise MalformedPacketError(text) from None
    return items


def read_properties(cursor: Cursor, place: Place) -> Properties:
    """Read a property list with its length."""
    size = cursor.varint("property length")
    if not size:
        return NO_PROPERTIES
    found: dict[str, Any] = {}
    many: dict[str, list[Any]] = {}
    for identifier, value, _ in scan(cursor.packet, cursor.take(size, "properties"), place):
        rule = TABLE[identifier]
        if rule.many:
            many.setdefault(rule.name, []).append(value)
        else:
            found[rule.name] = value
    found.update((name, tuple(every)) for name, every in many.items())
    return Properties(**found)


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
            where = place.name if isinstance(place, PacketType) else f"a {place}"
            raise UsageError(f"property {rule.name} does not belong in {where}", fix="leave it out")
        every = value if rule.many else (value,)
        if len(every) > 1 and place not in rule.repeated:
            raise UsageError(f"property {rule.name} stands more than once", fix="keep one")
        out.extend(_encode(identifier, one) for one in every)
    return b"".join(out)


def encode_properties(properties: Properties, place: Place) -> bytes:
    """Encode a property list with its length."""
    data = encode_items(properties, place)
    return encode_varint(len(data)) + data


def encode_reason(reason: int, properties: Properties, place: Place) -> bytes:
    """Encode a reason and properties, leaving out what says nothing."""
    data = encode_items(properties, place)
    if data:
        return bytes((reason,)) + encode_varint(len(data)) + data
    return bytes((reason,)) if reason else b""  # MQTT5 3.4.2.1, 3.14.2.1


def encode_user_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode user properties alone, to be put behind a message's own properties."""
    return b"".join(_encode(USER, pair) for pair in pairs)


def encode_subscription_identifiers(numbers: Iterable[int]) -> bytes:
    """Encode subscription identifiers alone, to be put behind a message's own properties."""
    return b"".join(_encode(SUBSCRIPTION_IDENTIFIER, number) for number in numbers)


def _encode(identifier: int, value: Any) -> bytes:
    rule = TABLE[identifier]
    return bytes((identifier,)) + rule.type.write(value, rule.name)


def _property(name: str) -> str:
    return f"property {name}" if name else "property"


def _behind(at: int) -> str:
    return f"at byte {at} behind the property length"
