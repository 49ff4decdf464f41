"""Presubscriptions: the access purpose a client's plain subscription stands for.

Rules that hold here:
- A presubscription belongs to one client and one filter; storing it again overwrites.
- It speaks for a subscription to the same filter and, failing that, to any filter that it
  covers: `a/#` speaks for `a/b`, `a/b` never for `a/#`. Where several cover it, the
  narrowest speaks: level by level, a name goes before `+` and `+` before `#`.
- For a shared subscription it may name the whole (`$share/group/filter`) or its filter.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.topics import SubscribedFilter
from penstock.policy.filters.tree import FilterTree


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
