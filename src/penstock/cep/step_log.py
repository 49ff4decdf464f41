"""Records of steps: what a log keeps, so that steps since a snapshot can be repeated.

Rules that hold here:
- A record is one line of JSON: what a packet was bound to, a moment that came, or a
  situation that was set by hand. Repeated in order, the records of all committed steps
  since a snapshot lead to the state that was lost.
- Of a packet it keeps the events, and what requests may ask of it: its subject, object and
  environment. Payloads are not kept. Whoever writes records protects them like the data
  that they stand for.
- An event of a type that is no longer defined is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.cep import state_codec
from penstock.cep.event_binding import BoundEvent, Packet, PrimitiveType


@dataclass(frozen=True, slots=True)
class PacketStep:
    """A packet took effect."""

    packet: Packet
    at: int
    bound: list[BoundEvent]


@dataclass(frozen=True, slots=True)
class SetStep:
    """A situation was set by hand."""

    scenario: str
    subject: str
    situation: str | None
    at: int
    hold: int = 0


@dataclass(frozen=True, slots=True)
class TimeStep:
    """Time passed."""

    at: int


Step: TypeAlias = PacketStep | SetStep | TimeStep


def write_packet(packet: Packet, at: int, bound: list[BoundEvent]) -> bytes:
    """Return the record of a packet's step."""
    return state_codec.write(
        {
            "packet": [packet.topic, packet.id, packet.depth],
            "at": at,
            "events": [[kind.name, values, happened, own] for kind, values, happened, own in bound],
            "roots": [dict(packet.s), dict(packet.o), dict(packet.e)],
        }
    )


def write_time(at: int) -> bytes:
    """Return the record of a moment."""
    return state_codec.write({"at": at})


def write_set(scenario: str, subject: str, situation: str | None, at: int, hold: int = 0) -> bytes:
    """Return the record of a situation that was set by hand, and for how long it is held."""
    record: dict[str, Any] = {"set": [scenario, subject, situation], "at": at}
    if hold:
        record["hold"] = hold
    return state_codec.write(record)


def read(record: bytes, types: Mapping[str, PrimitiveType]) -> Step:
    """Return the step that a record stands for."""
    data: Any = state_codec.read(record)
    try:
        at = data["at"]
        if "set" in data:
            scenario, subject, situation = data["set"]
            return SetStep(scenario, subject, situation, at, data.get("hold", 0))
        if "packet" not in data:
            return TimeStep(at)
        topic, identifier, depth = data["packet"]
        s, o, e = (state_codec.unpack(root) for root in data["roots"])
        bound: list[BoundEvent] = [
            (types[name], state_codec.unpack(values), happened, own)
            for name, values, happened, own in data["events"]
            if name in types
        ]
    except (KeyError, TypeError, ValueError):
        raise state_codec.StateError(
            "a record of a step has another format", fix="go back to an earlier snapshot"
        ) from None
    return PacketStep(Packet(topic, {"topic": topic}, s, o, e, identifier, depth), at, bound)
