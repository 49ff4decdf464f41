"""Subscriptions with their access purposes, by client and filter, and by group.

Rules that hold here:
- A client has one subscription per filter as it wrote it; subscribing again replaces it.
- The broker names the subscriptions that a delivery matches: nothing here finds them by topic.
- Subscriptions outlive connections: they go with UNSUBSCRIBE, a refused re-subscription or
  the end of the session, not with a disconnect.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.topics import SubscribedFilter


class Subscription:
    """One subscription of one client.

    `active` says that messages may flow: it is neither paused nor ended. `whole` says that
    no topic of the filter needs a check. `options` and `identifier` are the client's own
    and only carried along, so that a resumed subscription is the one the client made. A
    group is its owner's: another's of the same name is another group.
    """

    __slots__ = (
        "active",
        "ap",
        "client",
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
    ) -> None:
        self.client = client
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
        self._count -= 1
        if not held:
            del self._clients[client]
        if gone.group is not None:
            members = self._groups[text, gone.owner]
            del members[client]
            if not members:
                del self._groups[text, gone.owner]
        return gone
