"""What gateways tell each other about detection, as bytes.

    neighbour ──▶ detector:  Join, Ping, Ack, Submit, Leave
    detector ──▶ neighbour:  Pong, StateUpdate, NextDeadline, PublishResponse, Durable

Rules that hold here:
- A message is its kind, the length of its head, its head as JSON, and a payload as it is.
- What cannot be read raises `ChannelError`: the connection is over.
- Moments are those of the detector's `boot_clock`, in seconds (`ClockBound` translates them).
- Both ends run the same version of what is said (`VERSION`); another is refused.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from penstock.gateway.publish_result import PublishOutcome
from penstock.gateway.replication.channel import ChannelError
from penstock.gateway.replication.deduplication import Fingerprint

VERSION: Final = 2
_HEAD: Final = 4

SituationRow = tuple[str, str, str | None]
"""A scenario, its subject, and the situation that it is in now."""


class PublishRequest(NamedTuple):
    """A message that somebody wants to publish, as decisions see it."""

    user: str | None
    client: str
    topic: str
    payload: bytes
    rest: dict[str, Any]
    place: str | None = None
    """Where the gateway stands that the client is connected to."""
    fingerprint: Fingerprint | None = None
    """Tells it from others, where it must not count twice."""


class Join(NamedTuple):
    """A gateway wants to know what is detected, and to have its messages looked at."""

    neighbour: str
    """Names the process, not the connection."""
    version: int = VERSION


class Ping(NamedTuple):
    """A gateway is there, and wants to be told that the other detects."""

    number: int


class Pong(NamedTuple):
    """The answer to a ping: whoever sent it detects."""

    number: int
    now: float
    due: float | None
    """When time alone may change a situation; None: never."""
    situations: list[SituationRow] | None = None
    """All that hold, where the neighbour is told for the first time."""
    lease: float = 0.0
    """For how long it goes by that, and by what it is told later; said with the situations."""


class StateUpdate(NamedTuple):
    """Situations have changed."""

    number: int
    rows: list[SituationRow]
    due: float | None
    whole: bool = False
    """Whether nothing else holds."""


class NextDeadline(NamedTuple):
    """Time has changed nothing but what was told, and will not before this moment."""

    due: float | None


class Ack(NamedTuple):
    """All moves up to a number hold at a neighbour, too."""

    number: int


class Leave(NamedTuple):
    """A neighbour no longer goes by what it was told."""


class Submit(NamedTuple):
    """A message of a neighbour's client is to be detected and decided on."""

    number: int
    oldest: int
    """No number below it will be sent again."""
    epoch: int
    """Of the definitions that the neighbour knows: who decides must know them, too."""
    asked: PublishRequest


class PublishResponse(NamedTuple):
    """What became of a submitted message."""

    number: int
    outcome: PublishOutcome
    rule: str
    event: bool
    """Whether it was one, so that `Durable` follows."""


class Durable(NamedTuple):
    """The events of submitted messages would survive a crash."""

    numbers: list[int]


Message = (
    Join
    | Ping
    | Pong
    | StateUpdate
    | NextDeadline
    | Ack
    | Leave
    | Submit
    | PublishResponse
    | Durable
)

_KINDS: Final[tuple[type[Any], ...]] = (
    *(Join, Ping, Pong, StateUpdate, NextDeadline, Ack, Leave, Submit, PublishResponse, Durable),
)
_NUMBERS: Final = {kind: bytes([number]) for number, kind in enumerate(_KINDS)}


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    fields: list[Any] = list(message)
    payload = b""
    if type(message) is Submit:
        user, client, topic, payload, rest, place, fingerprint = message.asked
        fields[-1] = [user, client, topic, rest, place, fingerprint]
    head = json.dumps(fields, separators=(",", ":")).encode()
    return _NUMBERS[type(message)] + len(head).to_bytes(_HEAD, "big") + head + payload


def decode(data: bytes) -> Message:
    """Read a message."""
    try:
        kind = _KINDS[data[0]]
        end = 1 + _HEAD + int.from_bytes(data[1 : 1 + _HEAD], "big")
        fields = json.loads(data[1 + _HEAD : end])
        if kind is Submit:
            user, client, topic, rest, place, found = fields[-1]
            fingerprint = None if found is None else Fingerprint(*found)
            fields[-1] = PublishRequest(user, client, topic, data[end:], rest, place, fingerprint)
        elif kind is PublishResponse:
            fields[1] = PublishOutcome(fields[1])
        made: Message = kind(*fields)
    except (ValueError, TypeError, IndexError, RecursionError):
        raise ChannelError("a message between gateways cannot be read") from None
    return made


def check_version(join: Join) -> None:
    """Refuse a gateway that says things differently."""
    if join.version != VERSION:
        raise ChannelError(
            "the other gateway shares detection in another way",
            fix="run the same version of Penstock on all gateways of one store",
        )
