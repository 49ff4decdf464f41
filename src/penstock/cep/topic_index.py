"""Topics: which event types a topic can be bound to, and whether there are any.

Rules that hold here:
- The work follows the levels of the topic, not the number of types; topics that were
  looked up are cached, up to a limit.
- A filter that begins with a wildcard does not match a topic that begins with `$` (MQTT5 4.7.2).
- A topic is watched if a message on it could be an event. What depends on more than the topic
  counts as possible.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from penstock.cep.algebra import PacketEvents
from penstock.cep.program import Program

_CACHED_TOPICS: Final = 50_000
_NOTHING: Final[dict[str, Any]] = {}

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


class WatchedTopics:
    """The topics that are watched for the events of one program."""

    def __init__(self, program: Program) -> None:
        self._index: TopicIndex[int] = TopicIndex()
        self._kinds: list[PacketEvents] = []
        self._known: dict[str, bool] = {}
        for index in sorted(set(program.types.values())):
            kind = program.operators[index]
            if isinstance(kind, PacketEvents):
                for filter_ in kind.filters:
                    self._index.add(filter_, len(self._kinds))
                self._kinds.append(kind)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def matches(self, topic: str) -> bool:
        """Say whether a message on a topic could be an event."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _CACHED_TOPICS:
                self._known.clear()
            known = self._known[topic] = any(
                _could_be(self._kinds[place], topic) for place in self._index.find(topic)
            )
        return known


def _could_be(kind: PacketEvents, topic: str) -> bool:
    if not kind.when.references <= {"t.topic"}:
        return True
    return kind.when.function(_NOTHING, _NOTHING, _NOTHING, {"topic": topic}) is True
