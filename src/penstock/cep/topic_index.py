"""Which event types a topic can be bound to.

Rules that hold here:
- The work follows the levels of the topic, not the number of types; topics that were
  looked up are remembered, up to a limit.
- A filter that begins with a wildcard does not match a topic that begins with `$`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")


class _Branch(Generic[V]):
    __slots__ = ("all_below", "below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[V]] = {}
        self.here: list[V] = []
        self.all_below: list[V] = []


class TopicIndex(Generic[V]):
    """Values by topic filter, found by topic in the order in which they were added."""

    def __init__(self) -> None:
        self._root: _Branch[V] = _Branch()
        self._order: dict[V, int] = {}

    def add(self, filter_: str, value: V) -> None:
        """Add a value under a filter."""
        self._order.setdefault(value, len(self._order))
        branch = self._root
        for level in filter_.split("/"):
            if level == "#":
                branch.all_below.append(value)
                return
            branch = branch.below.setdefault(level, _Branch())
        branch.here.append(value)

    def find(self, topic: str) -> list[V]:
        """Return the values whose filters match a topic, each once."""
        found: dict[V, None] = {}
        levels = topic.split("/")
        branches = [self._root]
        for place, level in enumerate(levels):
            wild = place > 0 or not level.startswith("$")
            following = []
            for branch in branches:
                if wild:
                    found.update(dict.fromkeys(branch.all_below))
                names = (level, "+") if wild else (level,)
                following += [branch.below[name] for name in names if name in branch.below]
            branches = following
        for branch in branches:
            found.update(dict.fromkeys(branch.here))
            found.update(dict.fromkeys(branch.all_below))
        return sorted(found, key=self._order.__getitem__)
