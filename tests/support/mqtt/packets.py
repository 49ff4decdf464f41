"""Packets written byte by byte, and short ways to read them."""

from __future__ import annotations

import pytest

from penstock.mqtt import V5, MqttError, Packet, Reader, Sender


def packet(first: int, *body: bytes | int) -> bytes:
    """A packet of at most 127 bytes behind the header; integers are single bytes."""
    data = b"".join(part if isinstance(part, bytes) else bytes((part,)) for part in body)
    assert len(data) < 128
    return bytes((first, len(data))) + data


def field(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(2) + data


def read(
    data: bytes, sender: Sender = Sender.CLIENT, version: int | None = V5, **limits: int
) -> Packet:
    """Read exactly one packet."""
    reader = Reader(sender, version=version, **limits)  # type: ignore[arg-type]
    reader.feed(data)
    packets = reader.packets()
    assert reader.buffered == 0
    (only,) = packets
    return only


def refusal(
    data: bytes, sender: Sender = Sender.CLIENT, version: int | None = V5, **limits: int
) -> MqttError:
    """Read a packet that breaks a rule, and give the error."""
    reader = Reader(sender, version=version, **limits)  # type: ignore[arg-type]
    reader.feed(data)
    with pytest.raises(MqttError) as caught:
        reader.packets()
    return caught.value
