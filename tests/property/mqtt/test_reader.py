"""Packets survive the way over the wire, whatever the pieces; bad bytes only raise errors."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.mqtt import V3, V5, Connect, MqttError, Packet, Reader, Sender
from tests.support.mqtt.strategies import streams


def reader_for(sender: Sender, version: int) -> Reader:
    return Reader(sender, version=None if sender is Sender.CLIENT else version)


def read_all(reader: Reader, pieces: list[bytes]) -> tuple[list[Packet], MqttError | None]:
    """Read until the end or the first error."""
    packets: list[Packet] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while batch := reader.packets():
                packets += batch
    except MqttError as error:
        return packets, error
    return packets, None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@given(streams(), st.lists(st.integers(0, 10_000), max_size=10))
def test_reading_gives_what_was_written(
    stream: tuple[int, Sender, list[Packet]], places: list[int]
) -> None:
    version, sender, packets = stream
    data = b"".join(packet.encode(version) for packet in packets)
    reader = reader_for(sender, version)
    assert read_all(reader, cut(data, places)) == (packets, None)
    assert reader.buffered == 0
    assert reader.version == version


def read_first(reader: Reader, pieces: list[bytes]) -> tuple[Packet | None, MqttError | None]:
    """Read until the first packet is there, and feed the rest."""
    first = None
    try:
        for piece in pieces:
            reader.feed(piece)
            first = first or reader.first_packet()
    except MqttError as error:
        return None, error
    return first, None


@given(
    streams().filter(lambda it: it[1] is Sender.CLIENT),
    st.lists(st.integers(0, 10_000), max_size=10),
)
def test_the_first_packet_comes_alone_and_the_rest_stays_bytes(
    stream: tuple[int, Sender, list[Packet]], places: list[int]
) -> None:
    version, sender, packets = stream
    data = b"".join(packet.encode(version) for packet in packets)
    reader = reader_for(sender, version)
    assert read_first(reader, cut(data, places)) == (packets[0], None)
    assert reader.buffered == len(data) - len(packets[0].encode(version))
    assert read_all(reader, [b""]) == (packets[1:], None)


@given(st.binary(max_size=60))
def test_a_first_packet_is_refused_as_others_are(data: bytes) -> None:
    packets, error = read_all(Reader(Sender.CLIENT), [data])
    reader = Reader(Sender.CLIENT)
    first, refused = read_first(reader, [data])
    assert first == (packets[0] if packets else None)
    if not packets:
        assert (type(refused), str(refused)) == (type(error), str(error))
        assert reader.refused == (error is not None)


@given(streams())
def test_writing_gives_the_bytes_that_were_read(stream: tuple[int, Sender, list[Packet]]) -> None:
    version, sender, packets = stream
    data = b"".join(packet.encode(version) for packet in packets)
    found, _ = read_all(reader_for(sender, version), [data])
    assert b"".join(packet.encode(version) for packet in found) == data


mutations = st.lists(
    st.tuples(
        st.sampled_from(("replace", "insert", "delete", "repeat")),
        st.integers(0, 10_000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for what, place, value in changes:
        at = place % (len(out) + 1)
        if what == "insert":
            out.insert(at, value)
        elif what == "delete":
            del out[at : at + 1 + value % 4]
        elif what == "repeat":
            out[at:at] = out[at : at + value]
        elif at < len(out):
            out[at] = value
    return bytes(out)


@given(streams(), mutations, st.lists(st.integers(0, 10_000), max_size=6))
def test_changed_bytes_give_packets_or_errors_of_the_tree_however_they_are_cut(
    stream: tuple[int, Sender, list[Packet]],
    changes: list[tuple[str, int, int]],
    places: list[int],
) -> None:
    version, sender, packets = stream
    data = mutate(b"".join(packet.encode(version) for packet in packets), changes)
    whole, error = read_all(reader_for(sender, version), [data])
    pieces, other = read_all(reader_for(sender, version), cut(data, places))
    assert whole == pieces
    assert type(error) is type(other)
    assert (error and error.reason) == (other and other.reason)
    for packet in whole:
        # Whatever was accepted can be written again, and is read the same.
        begun = None if isinstance(packet, Connect) else version
        own = packet.version if isinstance(packet, Connect) else version
        again = read_all(Reader(sender, version=begun), [packet.encode(own)])
        assert again == ([packet], None)


@given(st.binary(max_size=2_000), st.sampled_from((V3, V5)), st.sampled_from(Sender))
@example(b"\x30\xff\xff\xff\x7f", V5, Sender.SERVER)
@example(b"\x10\xff\xff\xff\x7f", V5, Sender.CLIENT)
def test_arbitrary_bytes_neither_break_nor_bloat(data: bytes, version: int, sender: Sender) -> None:
    tracemalloc.start()
    try:
        reader = reader_for(sender, version)
        packets, error = read_all(reader, [data])
        assert sum(len(packet.encode(version)) for packet in packets) <= 2 * len(data) + 64
        assert reader.buffered <= len(data)
        assert error is None or reader.buffered == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
