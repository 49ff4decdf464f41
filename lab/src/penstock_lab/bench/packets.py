"""What reading and writing MQTT packets costs, in nanoseconds of one core.

The figures that matter are those of a small PUBLISH, as the gateway reads and writes each
message twice: once from its publisher to the broker, once from there to a subscriber. Every
figure is the best of several rounds. Most read chunks of 64 KiB, as a busy socket gives
them; `alone_in_chunk` has one packet per chunk, and `byte_by_byte` is per byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from penstock.mqtt import (
    NO_PROPERTIES,
    V3,
    V5,
    Packet,
    Properties,
    PropertyLists,
    Publish,
    Reader,
    Sender,
    TopicNames,
    encode_puback,
    encode_subscription_identifiers,
    encode_user_properties,
)

CHUNK = 65_536
TOPIC = "fleet/vehicles/1234/position"
PAYLOAD = b'{"lat":48.137154,"lon":11.576124}'
RESERVED = "penstock-"

_PUBLISHER = (("penstock-publisher", "vehicle-1234"), ("penstock-epoch", "4711"))
_OWN = encode_user_properties(_PUBLISHER)
_CLIENTS_NUMBER = encode_subscription_identifiers((3,))
_RICH = Properties(
    content_type="application/json",
    message_expiry=60,
    subscription_identifiers=(7,),
    user=(*_PUBLISHER, ("unit", "degree")),
)
_FROM_BROKER = Properties(subscription_identifiers=(7,), user=_PUBLISHER)

Work = Callable[[list[Packet]], None]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure, and give nanoseconds per packet and bytes per second."""
    rounds = 3 if quick else 15
    plain = {qos: _message(qos, NO_PROPERTIES) for qos in (0, 1)}
    rich = _message(1, _RICH)
    from_broker = _message(1, _FROM_BROKER)

    def measure(packet: bytes, version: int, work: Work | None = None) -> float:
        return _nanoseconds(packet, version, work, rounds)

    large = Publish.of(TOPIC, bytes(16_000)).encode(V5)
    alone = plain[0].encode(V5)
    figures = {
        "decode_publish_v3_qos0_ns": measure(plain[0].encode(V3), V3),
        "decode_publish_v3_qos1_ns": measure(plain[1].encode(V3), V3),
        "decode_publish_v5_qos0_ns": measure(plain[0].encode(V5), V5),
        "decode_publish_v5_qos1_ns": measure(plain[1].encode(V5), V5),
        "decode_publish_v5_properties_ns": measure(rich.encode(V5), V5),
        "decode_publish_v5_new_properties_ns": _nanoseconds_without_memory(rich, rounds),
        "recode_v3_to_v5_ns": measure(plain[1].encode(V3), V3, _to_broker),
        "recode_v5_to_v3_ns": measure(from_broker.encode(V5), V5, _to_old_client),
        "recode_v5_to_v5_properties_ns": measure(rich.encode(V5), V5, _to_client),
        "decode_puback_ns": measure(encode_puback(4_711), V5),
        "recode_puback_ns": measure(encode_puback(4_711), V5, _acknowledge),
        "decode_publish_alone_in_chunk_ns": _nanoseconds_in_pieces(alone, len(alone), rounds),
        "decode_byte_by_byte_ns": _nanoseconds_in_pieces(alone, 1, rounds),
    }
    figures = {name: round(value, 1) for name, value in figures.items()}
    small = len(alone)
    return {
        "packet_bytes": {"publish_v5_qos0": small, "publish_v5_properties": len(rich.encode(V5))},
        **figures,
        "reader_small_mb_per_s": round(small / figures["decode_publish_v5_qos0_ns"] * 1e3, 1),
        "reader_16k_mb_per_s": round(len(large) / measure(large, V5) * 1e3, 1),
    }


def _message(qos: int, properties: Properties) -> Publish:
    return Publish.of(TOPIC, PAYLOAD, qos=qos, packet_id=300 if qos else 0, properties=properties)


def _to_broker(batch: list[Packet]) -> None:
    for packet in batch:
        if type(packet) is Publish:
            packet.to_v5(packet.properties.kept + _OWN)


def _to_old_client(batch: list[Packet]) -> None:
    for packet in batch:
        if type(packet) is Publish:
            packet.to_v3()


def _to_client(batch: list[Packet]) -> None:
    for packet in batch:
        if type(packet) is Publish:
            packet.to_v5(packet.properties.kept + _CLIENTS_NUMBER)


def _acknowledge(batch: list[Packet]) -> None:
    for packet in batch:
        encode_puback(packet.packet_id)  # type: ignore[union-attr]  # only PUBACKs come here


def _reader(version: int) -> Reader:
    lists = PropertyLists(Sender.SERVER, reserved=(RESERVED,))
    return Reader(Sender.SERVER, version=version, properties=lists)


def _nanoseconds(packet: bytes, version: int, work: Work | None, rounds: int) -> float:
    """Read whole chunks, cutting packets where the chunks end."""
    count = max(1, 4 * CHUNK // len(packet))
    data = packet * count
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    reader = _reader(version)

    def once() -> int:
        done = 0
        for chunk in chunks:
            reader.feed(chunk)
            batch = reader.packets()
            done += len(batch)
            if work is not None:
                work(batch)
        return done

    return _best(once, rounds)


def _nanoseconds_without_memory(message: Publish, rounds: int) -> float:
    """Read packets whose property lists are all new to the reader."""
    data = message.encode(V5) * 100
    lists = PropertyLists(Sender.SERVER, reserved=(RESERVED,), longest=0)
    reader = Reader(Sender.SERVER, version=V5, topics=TopicNames(longest=0), properties=lists)

    def once() -> int:
        reader.feed(data)
        return len(reader.packets())

    return _best(once, rounds)


def _nanoseconds_in_pieces(packet: bytes, size: int, rounds: int) -> float:
    """Read packets as they come from a client that waits for each answer; per piece."""
    pieces = [packet[at : at + size] for at in range(0, len(packet), size)] * 100
    reader = _reader(V5)

    def once() -> int:
        for piece in pieces:
            reader.feed(piece)
            while reader.packets():
                pass
        return len(pieces)

    return _best(once, rounds)


def _best(once: Callable[[], int], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        done = once()
        best = min(best, (time.perf_counter_ns() - begin) / done)
    return best


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
