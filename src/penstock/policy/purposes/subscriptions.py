"""Subscriptions with their access purposes, and presubscriptions that give plain ones a purpose.

Rules that hold here:
- A client has one subscription per filter as it wrote it; subscribing again replaces it.
- The broker names the subscriptions that a delivery matches: nothing here finds them by topic.
- Subscriptions outlive connections: they go with UNSUBSCRIBE, a refused re-subscription or
  the end of the session, not with a disconnect.
- A presubscription belongs to one client and one filter; storing it again overwrites.
- It speaks for a subscription to the same filter and, failing that, to any filter that it
  covers: `a/#` speaks for `a/b`, `a/b` never for `a/#`. Where several cover it, the
  narrowest speaks: level by level, a name goes before `+` and `+` before `#`.
- For a shared subscription it may name the whole (`$share/group/filter`) or its filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penstock.model.topics import SubscribedFilter
from penstock.policy.filter_tree import FilterTree


class Content(Protocol):
    """A content filter, as a subscription holds it: its text."""

    text: str

    def end(self) -> None:
        """Match nothing from now on."""


class Subscription:
    """One subscription of one client.

    `active` says that messages may flow: it is neither paused nor ended. `whole` says that
    no topic of the filter needs a check. `options` and `identifier` are the client's own
    and only carried along, so that a resumed subscription is the one the client made. A
    group is its owner's: another's of the same name is another group. `content` is what events
    it is for; None: all.
    """

    __slots__ = (
        "active",
        "ap",
        "client",
        "content",
        "filter",
        "group",
        "identifier",
        "options",
        "owner",
        "qos",
        "text",
        "whole",
    )

    def __init__(
        self,
        client: str,
        subscribed: SubscribedFilter,
        ap: str | None,
        qos: int,
        *,
        options: int = 0,
        identifier: int = 0,
        owner: str = "",
        content: Content | None = None,
    ) -> None:
        self.client = client
        self.content = content
        self.owner = owner
        self.text = subscribed.text
        self.filter = subscribed.filter
        self.group = subscribed.group
        self.ap = ap
        self.qos = qos
        self.options = options
        self.identifier = identifier
        self.active = True
        self.whole = False

    def __repr__(self) -> str:
        state = "" if self.active else ", inactive"
        return f"<{self.client} subscribes {self.text} for {self.ap}{state}>"


class Subscriptions:
    """The subscriptions of all clients."""

    __slots__ = ("_clients", "_count", "_groups")

    def __init__(self) -> None:
        self._clients: dict[str, dict[str, Subscription]] = {}
        self._groups: dict[tuple[str, str], dict[str, Subscription]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        for held in self._clients.values():
            yield from held.values()

    def of(self, client: str) -> tuple[Subscription, ...]:
        """Return the subscriptions of a client."""
        return tuple(self._clients.get(client, {}).values())

    def group(self, text: str, owner: str = "") -> dict[str, Subscription]:
        """Return the members of a shared subscription by client."""
        return self._groups.get((text, owner), {})

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; the client has none with this text."""
        client = subscription.client
        self._clients.setdefault(client, {})[subscription.text] = subscription
        self._count += 1
        if subscription.group is not None:
            key = subscription.text, subscription.owner
            self._groups.setdefault(key, {})[client] = subscription

    def remove(self, client: str, text: str) -> Subscription | None:
        """Remove a subscription and return it; messages no longer flow through it."""
        held = self._clients.get(client, {})
        gone = held.pop(text, None)
        if gone is None:
            return None
        gone.active = False
        if gone.content is not None:
            gone.content.end()
        self._count -= 1
        if not held:
            del self._clients[client]
        if gone.group is not None:
            members = self._groups[text, gone.owner]
            del members[client]
            if not members:
                del self._groups[text, gone.owner]
        return gone


class Presubscription(NamedTuple):
    """An access purpose stored for a filter."""

    filter: str
    ap: str


class Presubscriptions:
    """The presubscriptions of all clients."""

    __slots__ = ("_clients", "_count")

    def __init__(self) -> None:
        self._clients: dict[str, FilterTree[Presubscription]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, client: str, filter_: str) -> Presubscription | None:
        """Return the presubscription of a client for exactly this filter."""
        held = self._clients.get(client)
        return held.get(filter_) if held is not None else None

    def set(self, client: str, filter_: str, ap: str | None) -> None:
        """Store the access purpose of a client for a filter; None removes it."""
        held = self._clients.setdefault(client, FilterTree())
        self._count -= len(held)
        if ap is None:
            held.remove(filter_)
        else:
            held.set(filter_, Presubscription(filter_, ap))
        self._count += len(held)
        if not len(held):
            del self._clients[client]

    def find(self, client: str, subscribed: SubscribedFilter) -> Presubscription | None:
        """Return the presubscription that speaks for a plain subscription."""
        held = self._clients.get(client)
        if held is None:
            return None
        for exact in (subscribed.text, subscribed.filter):
            named = held.get(exact)
            if named is not None:
                return named
        return min(held.covering(subscribed.filter), key=_narrowness, default=None)


def _narrowness(presubscription: Presubscription) -> tuple[tuple[int, ...], str]:
    levels = presubscription.filter.split("/")
    ranks = tuple(2 if level == "#" else 1 if level == "+" else 0 for level in levels)
    return ranks, presubscription.filter
