"""What a load consists of: who publishes to which topics, and who receives each of them.

Rules that hold here:
- Every topic of a plan has the same length, so that every message has the same size and
  a receiver can count messages by counting bytes.
- Every message has a known number of receivers, so that a loss or a duplicate shows.
- A plan is plain data that crosses to the generator's process as JSON.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError

KINDS = ("speed", "place", "usage")
"""The topics below each vehicle; of equal length."""

_WILDCARDS = ("now", "+", "#")
"""How the subscription to each kind ends: exact, one level, the rest."""


@dataclass(frozen=True, slots=True)
class Party:
    """One client of a plan."""

    client_id: str
    topics: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The clients of a load, and which of them answers for which.

    `source[i]` is the client whose messages client `i` receives; -1 for one that only
    publishes. `receivers` is how many clients each message reaches.
    """

    parties: tuple[Party, ...]
    source: tuple[int, ...]
    receivers: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoadPlan:
        """Read what `as_json` wrote."""
        parties = tuple(
            Party(item["client_id"], tuple(item["topics"]), tuple(item["filters"]))
            for item in data["parties"]
        )
        return cls(parties, tuple(data["source"]), data["receivers"])


def vehicle(number: int) -> str:
    """Return the topic below which a vehicle's topics lie."""
    return f"country1/area3/vehicle{number:05}"


def topics_of(number: int) -> tuple[str, ...]:
    """Return the three topics of a vehicle."""
    return tuple(f"{vehicle(number)}/{kind}/now" for kind in KINDS)


def filters_of(number: int, purpose: str | None = None) -> tuple[str, ...]:
    """Return three filters that match one topic of the vehicle each."""
    plain = tuple(
        f"{vehicle(number)}/{kind}/{end}" for kind, end in zip(KINDS, _WILDCARDS, strict=True)
    )
    return tuple(with_purpose(text, purpose) for text in plain)


def with_purpose(text: str, purpose: str | None) -> str:
    """Return the filter as a subscription for a purpose, or as it is without one."""
    return f"!AP/{text}{{{purpose}}}" if purpose else text


def mesh(clients: int, purpose: str | None = None) -> LoadPlan:
    """Every client publishes, and subscribes to the three topics of one other client."""
    if clients < 2:  # noqa: PLR2004 - a client does not listen to itself
        raise UsageError(f"a mesh of {clients} clients", fix="use at least 2")
    away = clients // 2
    source = tuple((number + away) % clients for number in range(clients))
    parties = tuple(
        Party(f"mesh-{number:05}", topics_of(number), filters_of(source[number], purpose))
        for number in range(clients)
    )
    return LoadPlan(parties, source)


def pairs(count: int, purpose: str | None = None) -> LoadPlan:
    """Make pairs of one publisher and one subscriber each."""
    publishers = tuple(Party(f"from-{n:05}", topics_of(n)[:1]) for n in range(count))
    subscribers = tuple(
        Party(f"to-{n:05}", filters=filters_of(n, purpose)[:1]) for n in range(count)
    )
    source = (-1,) * count + tuple(range(count))
    return LoadPlan(publishers + subscribers, source)


def fan_out(receivers: int, purpose: str | None = None) -> LoadPlan:
    """One publisher, and many subscribers to its one topic."""
    publisher = Party("from-00000", topics_of(0)[:1])
    subscribers = tuple(
        Party(f"to-{n:05}", filters=filters_of(0, purpose)[:1]) for n in range(receivers)
    )
    return LoadPlan((publisher, *subscribers), (-1,) + (0,) * receivers, receivers)
