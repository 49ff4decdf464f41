"""What publishing needs beside the right to write: an advertisement, and the type of the event.

    PUBLISH !ADVERTISE/home/PLUS/vitals ──▶ right to advertise? ──▶ held until the session ends
    PUBLISH home/p-17/vitals ──▶ a domain asks for it? ──▶ advertised? ──▶ of its type? ──▶ broker

Rules that hold here:
- A domain names the topics on which nobody publishes without having advertised it.
- An advertisement is a client's own, for one filter. It ends when it is withdrawn, at its time,
  with the connection, and with the right to it: that is looked at whenever it is used.
- Where a stream asks for it (`conform`), a message is refused that is not of its type: no JSON
  object, a field that is missing and not optional, a value of another type than declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.model.document import Document, Key
from penstock.model.kinds import Domain
from penstock.policy.decision import Decision, Depends, Explanation, Part
from penstock.policy.events.types import EventTypes
from penstock.policy.filters.tree import FilterTree
from penstock.policy.request import AccessRequest

ADVERTISEMENT: Final = "advertisement"
"""The rule that denies what was not advertised."""
OTHER_TYPE: Final = "event type "
"""How the rule begins that denies a message that is none of its stream; its name follows."""
LIMIT: Final = 1_000
"""The most advertisements of one client."""

_UNADVERTISED: Final = Decision(
    allowed=False, rule=ADVERTISEMENT, depends=Depends.TIME, part=Part.EVENT_TYPES
)


class Advertisements:
    """Where advertisements are needed, and what clients have advertised."""

    def __init__(self) -> None:
        self._domains: dict[str, tuple[str, ...]] = {}
        self._needed: FilterTree[bool] = FilterTree()
        self._held: dict[str, FilterTree[tuple[str, float]]] = {}
        """By client: found by topic, as each message asks; with the moment when they end."""

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind == Domain.kind]
        for key in keys:
            self._domains.pop(key.name, None)
            if key in documents:
                self._domains[key.name] = tuple(documents[key].body.get("advertised", ()))
        if keys:
            self._needed.clear()
            for filters in self._domains.values():
                for filter_ in filters:
                    self._needed.set(filter_, True)  # noqa: FBT003

    def are_needed(self, topic: str) -> bool:
        """Tell whether nobody publishes on a topic without having advertised it."""
        return bool(len(self._needed)) and bool(self._needed.matching(topic))

    def put(self, client: str, filter_: str, until: float | None) -> bool:
        """Hold an advertisement until a moment, or as long as the client is connected.

        False: the client has too many.
        """
        held = self._held.setdefault(client, FilterTree())
        if held.get(filter_) is None and len(held) >= LIMIT:
            return False
        held.set(filter_, (filter_, math.inf if until is None else until))
        return True

    def withdraw(self, client: str, filter_: str) -> None:
        """End an advertisement."""
        held = self._held.get(client)
        if held is not None:
            held.remove(filter_)

    def end(self, client: str) -> None:
        """End all that a client has advertised."""
        self._held.pop(client, None)

    def cover(self, client: str, topic: str, now: float, entitled: Callable[[str], bool]) -> bool:
        """Tell whether a client has advertised a topic, and still may."""
        held = self._held.get(client)
        if held is None:
            return False
        for filter_, until in held.matching(topic):
            if until <= now:
                held.remove(filter_)
            elif entitled(filter_):
                return True
        return False


class PublicationPart:
    """The part of the authorizer that looks at advertisements and types."""

    __slots__ = ("_types",)

    def __init__(self, types: EventTypes) -> None:
        self._types = types

    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny what was not advertised, or is of another type."""
        if not request.advertised:
            return _UNADVERTISED
        other = self._types.find_other(request.topic, request.message)
        if other is None:
            return None
        rule = OTHER_TYPE + other[0]
        return Decision(False, rule, Depends.MESSAGE, part=Part.EVENT_TYPES)  # noqa: FBT003

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say the same, with the attribute that is wrong."""
        if not request.advertised:
            reason = "its domain asks for an advertisement, and there is none"
            yield Explanation(
                allowed=False, rule=ADVERTISEMENT, reason=reason, part=Part.EVENT_TYPES
            )
        other = self._types.find_other(request.topic, request.message)
        if other is not None:
            yield Explanation(
                allowed=False, rule=OTHER_TYPE + other[0], reason=other[1], part=Part.EVENT_TYPES
            )
