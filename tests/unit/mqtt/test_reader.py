import gc
import sys
import tracemalloc
from contextlib import suppress

import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    PINGREQ,
    V3,
    V5,
    Connect,
    MalformedPacketError,
    MqttError,
    Packet,
    PacketTooLargeError,
    PacketType,
    ProtocolError,
    Puback,
    Publish,
    Reader,
    RequestedSubscription,
    Sender,
    Subscribe,
)
from penstock.mqtt.codes import FIXED_FLAGS, SENDABLE
from tests.support.mqtt.packets import field, packet, read, refusal

STREAM: list[Packet] = [
    Connect("me"),
    Publish.of("a/b", b"x" * 300, qos=1, packet_id=1),
    Subscribe(2, (RequestedSubscription("a/#"),)),
    Publish.of("a/b", b"y"),
    PINGREQ,
    Puback(3),
]
BYTES = b"".join(one.encode(V5) for one in STREAM)


def read_in_pieces(data: bytes, size: int) -> list[Packet]:
    reader = Reader(Sender.CLIENT)
    found: list[Packet] = []
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        found += reader.packets()
    assert reader.buffered == 0
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 299, 300, 301, 1_000])
def test_pieces_of_any_size_give_the_same_packets(size: int) -> None:
    assert read_in_pieces(BYTES, size) == STREAM


def test_several_pieces_can_be_fed_before_reading() -> None:
    reader = Reader(Sender.CLIENT)
    for at in range(0, len(BYTES), 10):
        reader.feed(BYTES[at : at + 10])
    assert reader.packets() == STREAM
    assert reader.packets() == []


def test_nothing_is_kept_between_whole_packets() -> None:
    reader = Reader(Sender.CLIENT, version=V5)
    reader.feed(b"\xc0\x00")
    assert reader.packets() == [PINGREQ]
    assert (reader.packets(), reader.buffered) == ([], 0)
    reader.feed(b"")
    assert (reader.packets(), reader.buffered) == ([], 0)


def test_packets_before_a_bad_one_come_first() -> None:
    reader = Reader(Sender.CLIENT)
    reader.feed(BYTES + b"\x00\x00" + BYTES)
    assert reader.packets() == STREAM
    with pytest.raises(MalformedPacketError):
        reader.packets()
    with pytest.raises(ProtocolError, match="refused before"):
        reader.packets()


def test_a_bad_beginning_behind_good_packets_comes_second() -> None:
    reader = Reader(Sender.CLIENT)
    reader.feed(BYTES + b"\x36")
    assert reader.packets() == STREAM
    with pytest.raises(MalformedPacketError):
        reader.packets()


def test_after_an_error_a_reader_takes_and_keeps_nothing() -> None:
    reader = Reader(Sender.CLIENT, version=V5)
    reader.feed(b"\x36\x00")
    with pytest.raises(MalformedPacketError):
        reader.packets()
    for _ in range(3):
        reader.feed(b"\xc0\x00")
        with pytest.raises(ProtocolError, match="refused before"):
            reader.packets()
        assert reader.buffered == 0


@pytest.mark.parametrize("before", [b"", b"\xc0\x00"])
def test_a_refused_reader_is_freed_at_once(before: bytes) -> None:
    """Not when the garbage collector comes by: a hostile client could fill memory until then."""
    data = before + b"\x36\x00" + bytes(100)
    references = sys.getrefcount(data)
    gc.disable()
    try:
        reader = Reader(Sender.CLIENT, version=V5)
        reader.feed(data)
        with suppress(MqttError):
            while reader.packets():
                pass
        assert sys.getrefcount(data) == references
    finally:
        gc.enable()


@pytest.mark.parametrize("version", [None, V3, V5])
@pytest.mark.parametrize("sender", Sender)
def test_the_first_byte_decides_by_sender_and_version(sender: Sender, version: int | None) -> None:
    if sender is Sender.SERVER and version is None:
        return
    for first in range(256):
        kind, flags = first >> 4, first & 15
        if version is None:
            allowed = first == 0x10
        else:
            allowed = kind > 0 and PacketType(kind) in SENDABLE[sender, version]
            if kind == 3:
                allowed = flags & 6 != 6 and flags & 14 != 8
            elif allowed:
                allowed = flags == FIXED_FLAGS[PacketType(kind)]
        reader = Reader(sender, version=version)
        reader.feed(bytes((first,)))
        if allowed:
            assert reader.packets() == []
        else:
            with pytest.raises(MqttError):
                reader.packets()


def test_nothing_but_connect_opens_a_connection() -> None:
    for data in (b"\xc0\x00", packet(0x30, field("a"), 0), b"\x40\x02\x00\x01", b"\xe0\x00"):
        assert type(refusal(data, version=None)) is ProtocolError


def test_a_second_connect_is_read_for_the_session_to_refuse() -> None:
    reader = Reader(Sender.CLIENT)
    reader.feed(Connect("a", V3).encode() + Connect("b", V5).encode())
    assert reader.packets() == [Connect("a", V3), Connect("b", V5)]
    assert reader.version == V3


def test_the_version_of_the_connect_holds_for_the_same_chunk() -> None:
    for version in (V3, V5):
        message = Publish.of("a", b"\x00")
        reader = Reader(Sender.CLIENT)
        reader.feed(Connect("me", version).encode() + message.encode(version))
        assert reader.packets() == [Connect("me", version), message]


def test_servers_are_read_in_a_known_version() -> None:
    with pytest.raises(UsageError):
        Reader(Sender.SERVER)
    with pytest.raises(UsageError):
        Reader(Sender.CLIENT, version=3)


@pytest.mark.parametrize(
    "length", ["8000", "ff8000", "80808000", "ffffffff", "8080808001", "ffffff80"]
)
def test_lengths_that_are_not_minimal_or_too_long_are_malformed(length: str) -> None:
    for version in (V3, V5):
        error = refusal(b"\x30" + bytes.fromhex(length), version=version)
        assert type(error) is MalformedPacketError


def test_size_is_judged_as_soon_as_it_is_known() -> None:
    message = Publish.of("a", bytes(200)).encode(V5)
    limit = len(message)
    assert isinstance(read(message, maximum_packet_size=limit), Publish)
    error = refusal(message[:3], maximum_packet_size=limit - 1)
    assert type(error) is PacketTooLargeError
    assert error.reason == 0x95
    assert type(refusal(message, maximum_packet_size=limit - 1)) is PacketTooLargeError


def test_a_giant_length_keeps_nothing() -> None:
    reader = Reader(Sender.CLIENT, version=V5, maximum_packet_size=1_000)
    reader.feed(b"\x30\xff\xff\xff\x7f" + bytes(60_000))
    with pytest.raises(PacketTooLargeError):
        reader.packets()
    assert reader.buffered == 0


def test_the_limit_can_change_on_the_way() -> None:
    reader = Reader(Sender.CLIENT, maximum_packet_size=30)
    reader.feed(Connect("me").encode())
    assert len(reader.packets()) == 1
    reader.maximum_packet_size = 1_000
    reader.feed(Publish.of("a", bytes(500)).encode(V5))
    assert len(reader.packets()) == 1


def test_a_large_packet_in_small_pieces_is_not_copied_for_each() -> None:
    payload = bytes(1_000_000)
    data = Publish.of("a", payload).encode(V5)
    reader = Reader(Sender.CLIENT, version=V5)
    tracemalloc.start()
    for at in range(0, len(data) - 1, 1_000):
        reader.feed(data[at : min(at + 1_000, len(data) - 1)])
        assert reader.packets() == []
    # One growing buffer: its size, and the spare room that growing needs.
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.3 * len(data)
    assert peak < 2.6 * len(data)
    reader.feed(data[-1:])
    (message,) = reader.packets()
    assert isinstance(message, Publish)
    assert message.payload == payload


def test_many_small_packets_keep_only_themselves() -> None:
    """A message that is kept does not keep the chunk that it came in."""
    data = Publish.of("a", b"x" * 50).encode(V5) * 1_000
    reader = Reader(Sender.CLIENT, version=V5)
    tracemalloc.start()
    reader.feed(data)
    message = reader.packets()[0]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(message, Publish)
    assert held < len(data) // 2


def test_readers_can_share_what_they_remember() -> None:
    first = Reader(Sender.CLIENT, version=V5)
    second = Reader(Sender.CLIENT, version=V5, topics=first.topics, properties=first.properties)
    data = Publish.of("a/b", b"x").encode(V5)
    messages: list[Packet] = []
    for reader in (first, second):
        reader.feed(data)
        messages += reader.packets()
    one, other = messages
    assert isinstance(one, Publish)
    assert isinstance(other, Publish)
    assert one.topic is other.topic
