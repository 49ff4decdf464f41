"""Coverage-guided fuzzing of the MQTT reader.

    python tests/fuzz/fuzz_mqtt_reader.py tests/fuzz/corpus/mqtt -max_total_time=60

The first byte of an input chooses sender, version and how the rest is cut into pieces; the
rest is what the other side sends. A finding is an exception that is no `MqttError`, memory
or time out of proportion (libFuzzer's -rss_limit_mb and -timeout), a packet that cannot be
written and read again, or pieces that read differently from the whole.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["penstock.mqtt"]):
    from penstock.mqtt import V3, V5, Connect, MqttError, Packet, Reader, Sender

LIMIT = 100_000
MODES: tuple[tuple[Sender, int | None], ...] = (
    (Sender.CLIENT, None),
    (Sender.CLIENT, V3),
    (Sender.CLIENT, V5),
    (Sender.SERVER, V3),
    (Sender.SERVER, V5),
)
SIZES = (1, 2, 3, 7, 16, 61)


def read(
    sender: Sender, version: int | None, pieces: list[bytes]
) -> tuple[list[Packet], int | None, Reader]:
    """Read all pieces; give the packets, the reason of the error, and the reader."""
    reader = Reader(sender, version=version, maximum_packet_size=LIMIT)
    packets: list[Packet] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while batch := reader.packets():
                packets += batch
    except MqttError as error:
        return packets, int(error.reason), reader
    return packets, None, reader


def check(data: bytes) -> None:
    """Read one input in both ways, and write what was read."""
    if not data:
        return
    sender, version = MODES[data[0] % len(MODES)]
    size = SIZES[data[0] // len(MODES) % len(SIZES)]
    stream = data[1:]
    packets, reason, reader = read(sender, version, [stream])
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    others, other_reason, other = read(sender, version, pieces)
    if (packets, reason) != (others, other_reason):
        raise AssertionError("pieces read differently from the whole")
    for one in (reader, other):
        if one.buffered > min(len(stream), LIMIT) or (reason is not None and one.buffered):
            raise AssertionError("more is kept than came")
    for packet in packets:
        own = packet.version if isinstance(packet, Connect) else reader.version or V5
        begun = None if isinstance(packet, Connect) else own
        again, error, _ = read(sender, begun, [packet.encode(own)])
        if (again, error) != ([packet], None):
            raise AssertionError("a packet changed when it was written and read again")


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
