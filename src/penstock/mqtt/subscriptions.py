"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK.

Rules that hold here:
- Each names or answers at least one filter, in order.
- Filters are non-empty well-formed text here; whether the wildcards in them stand where
  they may is judged by who understands the filter (see `penstock.model.topics`), as a
  purpose written behind a filter is no wildcard error.
- Reasons are MQTT 5's in both versions; 3.1.1 knows one failure, 0x80, and answers an
  UNSUBSCRIBE without reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from penstock.errors import UsageError
from penstock.mqtt.codes import (
    ALLOWED,
    FAILURE,
    V3,
    V3_SUBACK_CODES,
    V3_SUBACK_FAILURE,
    V5,
    PacketType,
    Sender,
)
from penstock.mqtt.data_types import Cursor, encode_packet_id, encode_text, frame
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    encode_properties,
    read_properties,
)

_QOS = 0x03
_NO_LOCAL = 0x04
_RETAIN_AS_PUBLISHED = 0x08
_RETAIN_HANDLING = 0x30
_RESERVED = 0xC0
_V3_RESERVED = 0xFC
_SHARED = "$share/"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RequestedSubscription:
    """One filter of a SUBSCRIBE with its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    def options(self, version: int) -> int:
        """Give the options byte; 3.1.1 knows the QoS only."""
        if version == V3:
            return self.qos
        return (
            self.qos
            | self.no_local << 2
            | self.retain_as_published << 3
            | self.retain_handling << 4
        )


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client's request for messages."""

    packet_type: ClassVar[PacketType] = PacketType.SUBSCRIBE

    packet_id: int
    subscriptions: tuple[RequestedSubscription, ...]
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        parts = [_head(self.packet_id, self.properties, version, PacketType.SUBSCRIBE)]
        for subscription in _some(self.subscriptions, "SUBSCRIBE"):
            parts.append(encode_text(subscription.filter, "filter"))
            parts.append(bytes((subscription.options(version),)))
        return frame(0x82, b"".join(parts))


@dataclass(frozen=True, slots=True)
class Suback:
    """The answer to a SUBSCRIBE: the granted QoS or a failure per filter."""

    packet_type: ClassVar[PacketType] = PacketType.SUBACK

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        head = _head(self.packet_id, self.properties, version, PacketType.SUBACK)
        reasons = bytes(_some(self.reasons, "SUBACK"))
        if version == V3:
            reasons = bytes(V3_SUBACK_FAILURE if code >= FAILURE else code for code in reasons)
        return frame(0x90, head + reasons)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A client's request to end subscriptions."""

    packet_type: ClassVar[PacketType] = PacketType.UNSUBSCRIBE

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        head = _head(self.packet_id, self.properties, version, PacketType.UNSUBSCRIBE)
        filters = _some(self.filters, "UNSUBSCRIBE")
        return frame(0xA2, head + b"".join(encode_text(text, "filter") for text in filters))


@dataclass(frozen=True, slots=True)
class Unsuback:
    """The answer to an UNSUBSCRIBE; in 3.1.1 it has no reasons."""

    packet_type: ClassVar[PacketType] = PacketType.UNSUBACK

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES

    def encode(self, version: int) -> bytes:
        """Encode for a protocol version."""
        head = _head(self.packet_id, self.properties, version, PacketType.UNSUBACK)
        return frame(0xB0, head if version == V3 else head + bytes(_some(self.reasons, "UNSUBACK")))


def read_subscribe(cursor: Cursor, version: int) -> Subscribe:
    """Read a SUBSCRIBE."""
    packet_id, properties = _read_head(cursor, version, PacketType.SUBSCRIBE)
    subscriptions: list[RequestedSubscription] = []
    while cursor.left:
        text = _read_filter(cursor)
        subscriptions.append(_read_options(cursor, text, version))
    if not subscriptions:  # MQTT5 3.8.3
        raise cursor.forbidden("no topic filter")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def read_suback(cursor: Cursor, version: int) -> Suback:
    """Read a SUBACK."""
    packet_id, properties = _read_head(cursor, version, PacketType.SUBACK)
    allowed = V3_SUBACK_CODES if version == V3 else ALLOWED[PacketType.SUBACK, Sender.SERVER]
    return Suback(packet_id, _read_reasons(cursor, allowed), properties)


def read_unsubscribe(cursor: Cursor, version: int) -> Unsubscribe:
    """Read an UNSUBSCRIBE."""
    packet_id, properties = _read_head(cursor, version, PacketType.UNSUBSCRIBE)
    filters: list[str] = []
    while cursor.left:
        filters.append(_read_filter(cursor))
    if not filters:  # MQTT5 3.10.3
        raise cursor.forbidden("no topic filter")
    return Unsubscribe(packet_id, tuple(filters), properties)


def read_unsuback(cursor: Cursor, version: int) -> Unsuback:
    """Read an UNSUBACK."""
    packet_id, properties = _read_head(cursor, version, PacketType.UNSUBACK)
    if version == V3:
        cursor.finish()
        return Unsuback(packet_id)
    allowed = ALLOWED[PacketType.UNSUBACK, Sender.SERVER]
    return Unsuback(packet_id, _read_reasons(cursor, allowed), properties)


def _read_head(cursor: Cursor, version: int, kind: PacketType) -> tuple[int, Properties]:
    packet_id = cursor.packet_id()
    return packet_id, read_properties(cursor, kind) if version == V5 else NO_PROPERTIES


def _read_filter(cursor: Cursor) -> str:
    text = cursor.text("topic filter")
    if not text:  # MQTT5 4.7.3
        raise cursor.malformed("topic filter is empty")
    return text


def _read_options(cursor: Cursor, text: str, version: int) -> RequestedSubscription:
    options = cursor.byte("subscription options")
    qos = options & _QOS
    if options & (_V3_RESERVED if version == V3 else _RESERVED):  # MQTT5 3.8.3.1
        raise cursor.malformed("reserved subscription options are set")
    if qos == _QOS:  # MQTT5 3.8.3.1
        raise cursor.malformed("subscription QoS is 3")
    handling = (options & _RETAIN_HANDLING) >> 4
    if handling == _QOS:  # MQTT5 3.8.3.1
        raise cursor.forbidden("retain handling is 3")
    no_local = bool(options & _NO_LOCAL)
    if no_local and text.startswith(_SHARED):  # MQTT5 3.8.3.1
        raise cursor.forbidden("no local on a shared subscription")
    return RequestedSubscription(
        text, qos, no_local, bool(options & _RETAIN_AS_PUBLISHED), handling
    )


def _read_reasons(cursor: Cursor, allowed: frozenset[int]) -> tuple[int, ...]:
    reasons = tuple(cursor.rest())
    if not reasons:  # MQTT5 3.9.3
        raise cursor.forbidden("no reason code")
    if not allowed.issuperset(reasons):
        raise cursor.forbidden("a reason code is not one of this packet's")
    return reasons


def _head(packet_id: int, properties: Properties, version: int, kind: PacketType) -> bytes:
    head = encode_packet_id(packet_id)
    return head if version == V3 else head + encode_properties(properties, kind)


def _some(items: tuple[_T, ...], packet: str) -> tuple[_T, ...]:
    if not items:
        raise UsageError(f"{packet} without entries", fix="give at least one")
    return items
