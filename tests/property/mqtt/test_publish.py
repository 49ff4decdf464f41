"""PUBLISH against a decoder written straight from the specification, slowly and plainly."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.mqtt import (
    V3,
    V5,
    MqttError,
    Properties,
    PropertyLists,
    Publish,
    Reader,
    Sender,
    encode_user_properties,
)
from tests.support.mqtt.strategies import publishes, texts


class RefusedError(Exception):
    """The naive decoder found something that is not allowed."""


class Naive:
    """MQTT 5 section 3.3 and MQTT 3.1.1 section 3.3, sentence by sentence."""

    def __init__(self, data: bytes, version: int, sender: Sender) -> None:
        self.stream = io.BytesIO(data)
        self.version = version
        self.sender = sender

    def take(self, count: int) -> bytes:
        data = self.stream.read(count)
        if len(data) < count:
            raise RefusedError
        return data

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def varint(self) -> int:
        value, multiplier, count = 0, 1, 0
        while True:
            byte = self.number(1)
            count += 1
            value += (byte & 127) * multiplier
            if not byte & 128:
                if byte == 0 and count > 1:
                    raise RefusedError
                return value
            if count == 4:
                raise RefusedError
            multiplier *= 128

    def text(self) -> str:
        try:
            text = self.take(self.number(2)).decode("utf-8", "strict")
        except UnicodeDecodeError:
            raise RefusedError from None
        if "\0" in text:
            raise RefusedError
        return text

    def topic(self) -> str:
        text = self.text()
        if "+" in text or "#" in text:
            raise RefusedError
        return text

    def properties(self) -> dict[int, list[Any]]:
        end = self.varint() + self.stream.tell()
        found: dict[int, list[Any]] = {}
        while self.stream.tell() < end:
            identifier = self.number(1)
            found.setdefault(identifier, []).append(self.value(identifier))
            if len(found[identifier]) > 1 and identifier not in {0x26, 0x0B}:
                raise RefusedError
        if self.stream.tell() != end:
            raise RefusedError
        if 0x0B in found and self.sender is Sender.CLIENT:
            raise RefusedError
        return found

    def value(self, identifier: int) -> Any:
        if identifier == 0x01:
            value: Any = self.number(1)
            if value > 1:
                raise RefusedError
        elif identifier == 0x02:
            value = self.number(4)
        elif identifier == 0x03:
            value = self.text()
        elif identifier == 0x08:
            value = self.topic()
            if not value:
                raise RefusedError
        elif identifier == 0x09:
            value = self.take(self.number(2))
        elif identifier in {0x0B, 0x23}:
            value = self.varint() if identifier == 0x0B else self.number(2)
            if not value:
                raise RefusedError
        elif identifier == 0x26:
            value = (self.text(), self.text())
        else:
            raise RefusedError
        return value

    def decode(self) -> dict[str, Any]:
        first = self.number(1)
        if first >> 4 != 3:
            raise RefusedError
        qos, dup, retain = first >> 1 & 3, bool(first & 8), bool(first & 1)
        if qos == 3 or (dup and qos == 0):
            raise RefusedError
        length = self.varint()
        body = self.take(length)
        if self.stream.read():
            raise RefusedError
        self.stream = io.BytesIO(body)
        topic = self.topic()
        packet_id = self.number(2) if qos else 0
        if qos and not packet_id:
            raise RefusedError
        listed = self.properties() if self.version == V5 else {}
        if not topic and 0x23 not in listed:
            raise RefusedError
        return {
            "topic": topic,
            "payload": self.stream.read(),
            "qos": qos,
            "dup": dup,
            "retain": retain,
            "packet_id": packet_id,
            "user": tuple(listed.get(0x26, ())),
            "subscription_identifiers": tuple(listed.get(0x0B, ())),
            "topic_alias": listed.get(0x23, [0])[0],
            "payload_format": listed.get(0x01, [None])[0],
            "message_expiry": listed.get(0x02, [None])[0],
            "content_type": listed.get(0x03, [None])[0],
            "response_topic": listed.get(0x08, [None])[0],
            "correlation_data": listed.get(0x09, [None])[0],
        }


def naive(data: bytes, version: int, sender: Sender) -> dict[str, Any] | None:
    try:
        return Naive(data, version, sender).decode()
    except RefusedError:
        return None


def ours(data: bytes, version: int, sender: Sender) -> dict[str, Any] | None:
    reader = Reader(sender, version=version)
    reader.feed(data)
    try:
        packets = reader.packets()
        packets += reader.packets()  # raises what is wrong behind the first packet
    except MqttError:
        return None
    if len(packets) != 1 or reader.buffered or not isinstance(packets[0], Publish):
        return None
    (message,) = packets
    assert isinstance(message, Publish)
    listed = message.properties
    from_message = ("topic", "payload", "qos", "dup", "retain", "packet_id")
    from_properties = (
        *("user", "subscription_identifiers", "topic_alias", "payload_format"),
        *("message_expiry", "content_type", "response_topic", "correlation_data"),
    )
    return {name: getattr(message, name) for name in from_message} | {
        name: getattr(listed, name) for name in from_properties
    }


cases = st.tuples(st.sampled_from((V3, V5)), st.sampled_from(Sender)).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.just(case[1]), publishes(case[1], case[0]))
)


@given(cases)
def test_both_decoders_read_the_same(case: tuple[int, Sender, Publish]) -> None:
    version, sender, message = case
    data = message.encode(version)
    found = naive(data, version, sender)
    assert found is not None
    assert ours(data, version, sender) == found


@given(cases, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_both_decoders_refuse_the_same(
    case: tuple[int, Sender, Publish], changes: list[tuple[int, int]]
) -> None:
    version, sender, message = case
    data = bytearray(message.encode(version))
    for place, value in changes:
        data[place % len(data)] = value
    changed = bytes(data)
    assert ours(changed, version, sender) == naive(changed, version, sender)


small_bytes = st.sampled_from((*range(12), 0x23, 0x26, 0x2B, 0x61, 0x7F, 0x80, 0xC3, 0xFF))


@given(
    st.sampled_from((0x30, 0x31, 0x32, 0x3D)),
    st.lists(small_bytes, max_size=24).map(bytes),
    st.sampled_from((V3, V5)),
    st.sampled_from(Sender),
)
def test_both_decoders_agree_on_dense_nonsense(
    first: int, body: bytes, version: int, sender: Sender
) -> None:
    data = bytes((first, len(body))) + body
    assert ours(data, version, sender) == naive(data, version, sender)


@given(publishes(Sender.SERVER, V5))
def test_a_way_through_3_1_1_loses_the_properties_only(message: Publish) -> None:
    if not message.topic:
        return
    found = ours(message.to_v3(), V3, Sender.SERVER)
    plain = naive(message.to_v5(b""), V5, Sender.SERVER)
    assert found == plain


@given(
    publishes(Sender.CLIENT, V5),
    st.lists(st.tuples(st.sampled_from(("p-", "p-x", "p", "P-", "")), texts), max_size=4),
    st.lists(st.tuples(texts, texts), max_size=2),
)
def test_reserved_properties_are_taken_out_and_nothing_else(
    message: Publish, forged: list[tuple[str, str]], own: list[tuple[str, str]]
) -> None:
    raw = message.properties.raw + encode_user_properties(forged)
    found = PropertyLists(Sender.CLIENT, reserved=("p-",)).parse(raw)
    every = [*message.properties.user, *forged]
    assert found.reserved == tuple(pair for pair in every if pair[0].startswith("p-"))
    assert found.user == tuple(pair for pair in every if not pair[0].startswith("p-"))
    written = naive(message.to_v5(found.kept + encode_user_properties(own)), V5, Sender.CLIENT)
    if not message.topic:
        assert written is None
        return
    assert written is not None
    assert written["user"] == (*found.user, *own)
    assert written["topic_alias"] == 0
    for name in Properties.__dataclass_fields__:
        if name in written and name not in {"user", "topic_alias", "subscription_identifiers"}:
            assert written[name] == getattr(message.properties, name)
