"""Subscriptions with their access purposes: by client and filter, and by topic.

Rules that hold here:
- A client has one subscription per filter as it wrote it; subscribing again replaces it.
- What matches is the inner filter of a shared subscription.
- Subscriptions outlive connections: they go with UNSUBSCRIBE, a refused re-subscription or
  the end of the session, not with a disconnect.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.topics import SubscribedFilter, decode_topic
from penstock.policy.filters.store import FilterStore, FlatFilters
from penstock.policy.filters.topic_cache import TopicCache
from penstock.policy.filters.tree import FilterTree

CLIENT_CACHE_LIMIT = 1_024


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


class ClientSubscriptions:
    """The subscriptions of one client."""

    __slots__ = ("_cache", "_index", "by_text")

    def __init__(self, *, tree: bool, cached: bool) -> None:
        self.by_text: dict[str, Subscription] = {}
        self.configure(tree=tree, cached=cached)

    def configure(self, *, tree: bool, cached: bool) -> None:
        """Change how matching subscriptions are found."""
        # One filter can be subscribed to plainly and in several groups.
        self._index: FilterStore[tuple[Subscription, ...]]
        self._index = FilterTree() if tree else FlatFilters()
        self._cache = TopicCache(self._look_up, CLIENT_CACHE_LIMIT) if cached else None
        for subscription in self.by_text.values():
            self._enter(subscription)

    def matching(self, topic: str | bytes) -> tuple[Subscription, ...]:
        """Return the subscriptions that match a topic, paused ones included."""
        if self._cache is not None:
            return self._cache[topic]
        return self._look_up(decode_topic(topic) if isinstance(topic, bytes) else topic)

    def add(self, subscription: Subscription) -> None:
        """Add a subscription whose text is not there."""
        self.by_text[subscription.text] = subscription
        self._enter(subscription)

    def remove(self, text: str) -> Subscription | None:
        """Remove a subscription and return it."""
        gone = self.by_text.pop(text, None)
        if gone is None:
            return None
        others = tuple(s for s in self._index.get(gone.filter) or () if s is not gone)
        if others:
            self._index.set(gone.filter, others)
        else:
            self._index.remove(gone.filter)
        if self._cache is not None:
            self._cache.forget(gone.filter)
        return gone

    def _enter(self, subscription: Subscription) -> None:
        others = self._index.get(subscription.filter) or ()
        self._index.set(subscription.filter, (*others, subscription))
        if self._cache is not None:
            self._cache.forget(subscription.filter)

    def _look_up(self, topic: str) -> tuple[Subscription, ...]:
        return tuple(s for group in self._index.matching(topic) for s in group)


class Subscriptions:
    """The subscriptions of all clients."""

    __slots__ = ("_cached", "_clients", "_count", "_groups", "_tree")

    def __init__(self, *, tree: bool = True, cached: bool = True) -> None:
        self._tree = tree
        self._cached = cached
        self._clients: dict[str, ClientSubscriptions] = {}
        self._groups: dict[tuple[str, str], dict[str, Subscription]] = {}
        self._count = 0

    def configure(self, *, tree: bool, cached: bool) -> None:
        """Change how matching subscriptions are found."""
        self._tree = tree
        self._cached = cached
        for client in self._clients.values():
            client.configure(tree=tree, cached=cached)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        for client in self._clients.values():
            yield from client.by_text.values()

    def of(self, client: str) -> tuple[Subscription, ...]:
        """Return the subscriptions of a client."""
        held = self._clients.get(client)
        return tuple(held.by_text.values()) if held else ()

    def get(self, client: str, text: str) -> Subscription | None:
        """Return the subscription of a client to a filter as it wrote it."""
        held = self._clients.get(client)
        return held.by_text.get(text) if held else None

    def group(self, text: str, owner: str = "") -> dict[str, Subscription]:
        """Return the members of a shared subscription by client."""
        return self._groups.get((text, owner), {})

    def matching(self, client: str, topic: str | bytes) -> tuple[Subscription, ...]:
        """Return the subscriptions of a client that match a topic, paused ones included."""
        held = self._clients.get(client)
        return held.matching(topic) if held else ()

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; the client has none with this text."""
        client = subscription.client
        held = self._clients.get(client)
        if held is None:
            held = self._clients[client] = ClientSubscriptions(tree=self._tree, cached=self._cached)
        held.add(subscription)
        self._count += 1
        if subscription.group is not None:
            key = subscription.text, subscription.owner
            self._groups.setdefault(key, {})[client] = subscription

    def remove(self, client: str, text: str) -> Subscription | None:
        """Remove a subscription and return it; messages no longer flow through it."""
        held = self._clients.get(client)
        gone = held.remove(text) if held else None
        if held is None or gone is None:
            return None
        gone.active = False
        self._count -= 1
        if not held.by_text:
            del self._clients[client]
        if gone.group is not None:
            members = self._groups[text, gone.owner]
            del members[client]
            if not members:
                del self._groups[text, gone.owner]
        return gone
