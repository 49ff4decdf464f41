"""The replication protocol between gateways: its messages, and their encoding.

    follower ──▶ leader:  Join, Ping, Ack, Submit, Leave
    leader ──▶ follower:  Pong, StateUpdate, NextDeadline, PublishResponse, Durable

Rules that hold here:
- A message is its kind, the length of its head, its head as JSON, and a raw payload.
- What cannot be decoded raises `ChannelError`: the connection is over.
- Moments are those of the leader's `boot_clock`, in seconds (`ClockBound` translates them).
- Both ends run the same version of the protocol (`VERSION`); another is refused.
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
    """A message that a client wants to publish, as decisions see it."""

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
    """A gateway wants to follow: to get the situations, and to submit messages."""

    follower: str
    """Names the process, not the connection."""
    version: int = VERSION


class Ping(NamedTuple):
    """A follower is alive, and asks whether the leader still is."""

    number: int


class Pong(NamedTuple):
    """The answer to a ping: its sender is the leader."""

    number: int
    now: float
    due: float | None
    """When time alone may change a situation; None: never."""
    situations: list[SituationRow] | None = None
    """All that hold, in the first answer to a follower."""
    lease: float = 0.0
    """How long replicated state is valid after a ping; set together with the situations."""


class StateUpdate(NamedTuple):
    """Situations have changed."""

    number: int
    rows: list[SituationRow]
    due: float | None
    whole: bool = False
    """Whether the rows are all situations that hold."""


class NextDeadline(NamedTuple):
    """Time alone changes no situation before this moment."""

    due: float | None


class Ack(NamedTuple):
    """A follower has applied all updates up to a number."""

    number: int


class Leave(NamedTuple):
    """A follower no longer relies on replicated state."""


class Submit(NamedTuple):
    """A follower submits a message of its client, to be detected and decided on."""

    number: int
    oldest: int
    """No number below it will be submitted again."""
    epoch: int
    """Of the definitions that the follower knows: the leader must know them, too."""
    request: PublishRequest


class PublishResponse(NamedTuple):
    """What became of a submitted message."""

    number: int
    outcome: PublishOutcome
    rule: str
    event: bool
    """Whether it was one, so that `Durable` follows."""


class Durable(NamedTuple):
    """The events of submitted messages are in the journal."""

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
        user, client, topic, payload, rest, place, fingerprint = message.request
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
    """Refuse a gateway with another version of the protocol."""
    if join.version != VERSION:
        raise ChannelError(
            "the other gateway shares detection in another way",
            fix="run the same version of Penstock on all gateways of one store",
        )
