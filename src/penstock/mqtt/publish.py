"""PUBLISH: the packet that everything is about, and the only one that must be cheap.

A decoded `Publish` keeps the bytes it came from: the topic with its length as one field,
the properties as the list they were, the payload as one slice. Writing it again, in the
same version or the other, joins these pieces behind a new header. Messages of one publisher
mostly carry the same few properties: `PropertyLists` makes the usual message cost one lookup.

Rules that hold here:
- `topic` and `topic_field` say the same; change them with `rename`. `packet_id` may be set.
- A `PublishProperties` is shared between messages with equal lists and never changes; what
  is written comes from the `properties` argument of `to_v5`.
- `kept` is what may go on: a topic alias and subscription identifiers mean something on
  one connection only, and reserved user properties are the gateway's own.
- `TopicNames` and `PropertyLists` remember what was found valid. They hold a bounded
  number of short keys, and only what passed the checks, so that remembering changes
  nothing but the time it takes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final

from penstock.errors import UsageError
from penstock.mqtt.codes import (
    V5,
    MalformedPacketError,
    MqttError,
    PacketType,
    ProtocolError,
    Sender,
    TopicNameError,
)
from penstock.mqtt.data_types import (
    FIELD_LIMIT,
    Cursor,
    are_acceptable,
    encode_text,
    encode_varint,
    read_varint,
)
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    SUBSCRIPTION_IDENTIFIER,
    TABLE,
    TOPIC_ALIAS,
    USER,
    Properties,
    UserProperties,
    encode_items,
    scan,
)


@dataclass(slots=True)
class PublishProperties:
    """The properties of a PUBLISH, read once per distinct list of bytes."""

    raw: bytes
    """The list as it came, without its length."""
    kept: bytes
    """The list without topic alias, subscription identifiers and reserved user properties."""
    user: UserProperties = ()
    """User properties whose names are not reserved, in order."""
    reserved: UserProperties = ()
    """User properties whose names begin with a reserved prefix, in order."""
    subscription_identifiers: tuple[int, ...] = ()
    topic_alias: int = 0
    """0 where there is none."""
    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    acceptable: bool = field(default=True, compare=False)
    """Whether every receiver accepts the texts that a client sent (MQTT5 1.5.4)."""
    bound: bytes | None = field(default=None, init=False, compare=False)
    """What of it is authenticated with a message, once somebody has worked that out."""

    def __repr__(self) -> str:
        # Values are the publisher's data and do not belong in logs.
        given = [
            item.name for item in fields(self)[2:-1] if getattr(self, item.name) != item.default
        ]
        return f"PublishProperties({', '.join(given)})"


NO_PUBLISH_PROPERTIES: Final = PublishProperties(b"", b"")


class PropertyLists(dict[bytes, PublishProperties]):
    """Valid property lists of PUBLISH packets; `lists[raw]` parses new ones.

    One instance serves one direction: clients may not send subscription identifiers. User
    properties whose names begin with one of the `reserved` prefixes are told apart.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        reserved: tuple[str, ...] = (),
        entries: int = 8_192,
        longest: int = 256,
    ) -> None:
        super().__init__()
        self.sender = sender
        self.reserved = reserved
        self._entries = entries
        self._longest = longest

    def __missing__(self, raw: bytes) -> PublishProperties:
        properties = self.parse(raw)
        if len(raw) <= self._longest:
            if len(self) >= self._entries:
                self.clear()
            self[raw] = properties
        return properties

    def parse(self, raw: bytes) -> PublishProperties:
        """Read a property list without remembering it."""
        if not raw:
            return NO_PUBLISH_PROPERTIES
        properties = PublishProperties(raw, raw)
        kept: list[bytes] = []
        user: list[tuple[str, str]] = []
        reserved: list[tuple[str, str]] = []
        numbers: list[int] = []
        for identifier, value, data in scan("PUBLISH", raw, PacketType.PUBLISH):
            if identifier == USER:
                if value[0].startswith(self.reserved):
                    reserved.append(value)
                    continue
                user.append(value)
            elif identifier == SUBSCRIPTION_IDENTIFIER:
                if self.sender is Sender.CLIENT:  # MQTT5 3.3.4
                    raise ProtocolError("PUBLISH: a client sent a subscription identifier")
                numbers.append(value)
                continue
            elif identifier == TOPIC_ALIAS:
                properties.topic_alias = value
                continue
            else:
                setattr(properties, TABLE[identifier].name, value)
            kept.append(data)
        properties.kept = b"".join(kept)
        properties.user = tuple(user)
        properties.reserved = tuple(reserved)
        properties.subscription_identifiers = tuple(numbers)
        if self.sender is Sender.CLIENT:
            texts = (properties.content_type or "", properties.response_topic or "")
            properties.acceptable = are_acceptable((*texts, *(it for pair in user for it in pair)))
        return properties


_DUP = 0x08
_QOS = 0x06
_RETAIN = 0x01
_HIGHEST_QOS = 2
_LONG = 0x80
_LONGER = 0x4000


@dataclass(slots=True)
class Publish:
    """An application message on its way.

    Made by the reader, or with `Publish.of`. `packet_id` is 0 where the QoS is 0. In MQTT 5
    the topic is empty where the packet has only a topic alias.
    """

    packet_type: ClassVar[PacketType] = PacketType.PUBLISH

    first: int
    topic_field: bytes = field(repr=False)
    topic: str
    packet_id: int
    properties: PublishProperties
    payload: bytes = field(repr=False)

    @classmethod
    def of(
        cls,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> Publish:
        """Make a message to be sent, checking what the reader would have checked."""
        if not 0 <= qos <= _HIGHEST_QOS:
            raise UsageError(f"{qos} is not QoS", fix="use 0, 1 or 2")
        if (qos == 0) != (packet_id == 0) or not 0 <= packet_id <= FIELD_LIMIT:
            raise UsageError(
                f"packet identifier {packet_id} with QoS {qos}",
                fix="use 1 to 65535 with QoS 1 and 2, and 0 with QoS 0",
            )
        if dup and not qos:  # MQTT5 3.3.1.1
            raise UsageError("DUP with QoS 0", fix="leave DUP out")
        if not topic and not properties.topic_alias:
            raise UsageError("the topic is empty", fix="name a topic or a topic alias")
        first = 0x30 | dup << 3 | qos << 1 | retain
        listed = PropertyLists(Sender.SERVER).parse(encode_items(properties, PacketType.PUBLISH))
        return cls(first, _topic_field(topic), topic, packet_id, listed, payload)

    @property
    def qos(self) -> int:
        """Quality of service: 0, 1 or 2."""
        return self.first >> 1 & 3

    @property
    def retain(self) -> bool:
        """Whether the broker keeps the message, or sent it because it had kept it."""
        return bool(self.first & _RETAIN)

    @property
    def dup(self) -> bool:
        """Whether the packet was sent before."""
        return bool(self.first & _DUP)

    def rename(self, topic: str) -> None:
        """Put another topic in place of the present one."""
        self.topic_field = _topic_field(topic)
        self.topic = topic

    def to_v3(self) -> bytes:
        """Encode for MQTT 3.1.1, which knows no properties."""
        topic, payload, first = self.topic_field, self.payload, self.first
        size = len(topic) + len(payload)
        if first & _QOS:
            size += 2
            head = _pack_head(first, size) if size < _LONG else _long_head(first, size)
            return b"".join((head, topic, _pack_two(self.packet_id), payload))
        head = _pack_head(first, size) if size < _LONG else _long_head(first, size)
        return b"".join((head, topic, payload))

    def to_v5(self, properties: bytes | None = None) -> bytes:
        """Encode for MQTT 5 with these encoded properties, or else those it came with."""
        topic, payload, first = self.topic_field, self.payload, self.first
        if properties is None:
            properties = self.properties.raw
        count = encode_varint(len(properties))
        size = len(topic) + len(count) + len(properties) + len(payload)
        if first & _QOS:
            size += 2
            head = _pack_head(first, size) if size < _LONG else _long_head(first, size)
            parts = (head, topic, _pack_two(self.packet_id), count, properties, payload)
            return b"".join(parts)
        head = _pack_head(first, size) if size < _LONG else _long_head(first, size)
        return b"".join((head, topic, count, properties, payload))

    def encode(self, version: int) -> bytes:
        """Encode as it is for a protocol version."""
        return self.to_v5() if version == V5 else self.to_v3()


_NOT_PLAIN = 0xFC
_PLAIN = 0x30
_PLAIN_SIZE = 4
_PLAIN_BODY = 2
_new = object.__new__
_pack_head = struct.Struct("BB").pack
_pack_long_head = struct.Struct("BBB").pack
_pack_two = struct.Struct(">H").pack


def _long_head(first: int, size: int) -> bytes:
    if size < _LONGER:
        return _pack_long_head(first, size & 0x7F | _LONG, size >> 7)
    return bytes((first,)) + encode_varint(size)


def encode_head(first: int, size: int) -> bytes:
    """Encode the first byte and the length of what follows."""
    return _pack_head(first, size) if size < _LONG else _long_head(first, size)


def _topic_field(topic: str) -> bytes:
    if "#" in topic or "+" in topic:
        raise UsageError("the topic holds a wildcard", fix="publish to one topic")
    return encode_text(topic, "topic")


class TopicNames(dict[bytes, str]):
    """Valid topic fields (length and name) and their text; `names[field]` checks new ones.

    The empty name is let through, as it can stand beside a topic alias.
    """

    def __init__(self, *, entries: int = 8_192, longest: int = 512) -> None:
        super().__init__()
        self._entries = entries
        self._longest = longest

    def __missing__(self, topic_field: bytes) -> str:
        topic = self.check(topic_field)
        if len(topic_field) <= self._longest:
            if len(self) >= self._entries:
                self.clear()
            self[topic_field] = topic
        return topic

    @staticmethod
    def check(topic_field: bytes) -> str:
        """Read a topic name, raising what is wrong with it."""
        try:
            topic = topic_field[2:].decode()
        except UnicodeDecodeError as error:
            place = f"at byte {error.start + 2}"
            raise MalformedPacketError(
                f"PUBLISH: topic name is ill-formed UTF-8 ({place})"
            ) from None
        if "\0" in topic:
            raise MalformedPacketError("PUBLISH: topic name holds U+0000")
        if "#" in topic or "+" in topic:  # MQTT5 3.3.2.1
            raise TopicNameError("PUBLISH: topic name holds a wildcard")
        return topic


PUBLISH_FIRST: Final = frozenset((0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D))
"""The first bytes that a PUBLISH can have: neither QoS 3 nor DUP with QoS 0."""


def read_publish(
    first: int,
    data: bytes,
    start: int,
    stop: int,
    version: int,
    topics: TopicNames,
    lists: PropertyLists,
) -> Publish:
    """Read a PUBLISH whose first byte is in order and whose body is `data[start:stop]`.

    Only what costs nothing is checked on the way; a packet that breaks a rule is read a
    second time by `_explain`.
    """
    packet_id = begin = 0
    properties = NO_PUBLISH_PROPERTIES
    try:
        at = start + 2 + (data[start] << 8 | data[start + 1])
        topic_field = data[start:at]
        if first & _QOS:
            packet_id = data[at] << 8 | data[at + 1]
            at += 2
            if not packet_id:
                raise _explain(first, data, start, stop, version)
        if version == V5:
            size = data[at]
            at += 1
            if size:
                if size >= _LONG:
                    size, at = read_varint(data, at - 1, stop) or (stop, stop)
                begin = at
                at += size
    except IndexError:
        raise _explain(first, data, start, stop, version) from None
    if at > stop:
        raise _explain(first, data, start, stop, version)
    if begin:
        properties = lists[data[begin:at]]
    topic = topics[topic_field]
    if not topic and not properties.topic_alias:
        raise _explain(first, data, start, stop, version)
    # Not `Publish(...)`: a call of `__init__` costs a third more than these lines.
    message = _new(Publish)
    message.first = first
    message.topic_field = topic_field
    message.topic = topic
    message.packet_id = packet_id
    message.properties = properties
    message.payload = data[at:stop]
    return message


def find_plain(data: bytes, at: int, version: int) -> tuple[int, int, int, int, int] | None:
    """Find a whole, short PUBLISH that is neither of QoS 2 nor sent again; None: a reader reads it.

    Say where its topic field begins and ends, where its properties with their length begin, where
    its payload begins, and where it ends. Neither topic nor properties are looked into.
    """
    end = len(data)
    first = data[at]
    if first & _NOT_PLAIN != _PLAIN or end - at < _PLAIN_SIZE:
        return None
    size = data[at + 1]
    start = at + 2
    if size >= _LONG:
        size += (data[start] << 7) - _LONG
        start += 1
        if not _LONG <= size < _LONGER:
            return None
    stop = start + size
    if stop > end or size < _PLAIN_BODY:
        return None
    middle = body = start + 2 + (data[start] << 8 | data[start + 1])
    if first & _QOS:
        body += 2
        if body > stop or not (data[middle] or data[middle + 1]):
            return None
    begin = body
    if version == V5:
        if body >= stop or data[body] >= _LONG:
            return None
        begin += 1 + data[body]
    return (start, middle, body, begin, stop) if begin <= stop else None


def _explain(first: int, data: bytes, start: int, stop: int, version: int) -> MqttError:
    """Find what is wrong with a PUBLISH that `read_publish` gave up on."""
    cursor = Cursor("PUBLISH", data, start, stop)
    cursor.binary("topic name")
    if first & _QOS:
        cursor.packet_id()
    if version == V5:
        size = cursor.varint("property length")
        if size > cursor.left:
            return cursor.malformed(f"property length is {size}, {cursor.left} bytes are left")
        return ProtocolError("PUBLISH: neither topic name nor topic alias")  # MQTT5 3.3.2.3.4
    return TopicNameError("PUBLISH: topic name is empty")  # MQTT3.1.1 4.7.3
