"""Steps of the engine: what a step results in, and the record that replays it.

Rules that hold here:
- Events, transitions and publications stand in the order in which they came about.
- `depth` counts the actions that led to a step; a message that it publishes is one deeper.
  Whoever publishes it decides how deep is too deep.
- A record is one line of JSON: the events of a packet, a moment that came, or a situation that
  was set by hand. Replayed in order, the records of all committed steps since a snapshot restore
  the state that was lost.
- Of a packet the record keeps the events, and what requests may ask of it: its subject, object
  and environment. Payloads are not kept. Whoever writes records protects them like the data that
  they stand for.
- An event of a type that is no longer defined is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from penstock.cep.context import Row, StateError, decode_record, encode_record, unpack
from penstock.cep.event_binding import BoundEvent, Packet, PrimitiveType

DetectedEvent: TypeAlias = tuple[str, Row]
"""An event type, and the row that says what happened or holds, and when."""


class TransitionCause(StrEnum):
    """What brings a transition about."""

    EVENT = "detected"
    HAND = "manual"
    TIME = "time"
    """It was held by hand for a time that is over."""
    DURATION = "duration"
    """A situation has lasted for its longest duration."""
    LIMIT = "limit"
    """Too many others are in some situation."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A scenario's step from one situation to another; None is inactive.

    `evolution` is the number of the plan's evolution, where it is one; `event` and `values` are
    known where an event brought it about.
    """

    scenario: str
    subject: str
    source: str | None
    target: str | None
    at: int
    event: str | None = None
    values: Mapping[str, Any] | None = None
    evolution: int | None = None
    cause: TransitionCause = TransitionCause.EVENT


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that an action wants published."""

    topic: str
    payload: Mapping[str, Any]
    action: str
    scenario: str
    subject: str
    depth: int


class StepResult:
    """What one step came to.

    Most steps come to little: what is empty is shared, and becomes a list of its own when
    something is put in.
    """

    transitions: Sequence[Transition] = ()
    publications: Sequence[Publication] = ()

    def __init__(self, at: int, depth: int, seq: int) -> None:
        self.at = at
        self.depth = depth
        self.seq = seq
        self.detected: list[DetectedEvent] = []
        """All events, primitive and complex."""

    def add_transition(self, transition: Transition) -> None:
        """Note that a scenario evolved."""
        self.transitions = [*self.transitions, transition]

    def add_publications(self, publications: Iterable[Publication]) -> None:
        """Note what actions want published."""
        self.publications = [*self.publications, *publications]


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


def record_packet(packet: Packet, at: int, bound: list[BoundEvent]) -> bytes:
    """Return the record of a packet's step."""
    return encode_record(
        {
            "packet": [packet.topic, packet.id, packet.depth],
            "at": at,
            "events": [[kind.name, values, happened, own] for kind, values, happened, own in bound],
            "roots": [dict(packet.s), dict(packet.o), dict(packet.e)],
        }
    )


def record_time(at: int) -> bytes:
    """Return the record of a moment."""
    return encode_record({"at": at})


def record_set(scenario: str, subject: str, situation: str | None, at: int, hold: int = 0) -> bytes:
    """Return the record of a situation that was set by hand, and for how long it is held."""
    record: dict[str, Any] = {"set": [scenario, subject, situation], "at": at}
    if hold:
        record["hold"] = hold
    return encode_record(record)


def read_record(record: bytes, types: Mapping[str, PrimitiveType]) -> Step:
    """Return the step that a record stands for."""
    data: Any = decode_record(record)
    try:
        at = data["at"]
        if "set" in data:
            scenario, subject, situation = data["set"]
            return SetStep(scenario, subject, situation, at, data.get("hold", 0))
        if "packet" not in data:
            return TimeStep(at)
        topic, identifier, depth = data["packet"]
        s, o, e = (unpack(root) for root in data["roots"])
        bound: list[BoundEvent] = [
            (types[name], unpack(values), happened, own)
            for name, values, happened, own in data["events"]
            if name in types
        ]
    except (KeyError, TypeError, ValueError):
        raise StateError(
            "a record of a step has another format", fix="go back to an earlier snapshot"
        ) from None
    return PacketStep(Packet(topic, {"topic": topic}, s, o, e, identifier, depth), at, bound)
