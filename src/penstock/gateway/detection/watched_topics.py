"""Which topics detection looks at, whether it runs or not.

Rules that hold here:
- A topic is watched if a message on it could be an event. What cannot be told from the
  topic alone counts as could.
- What was found is remembered, in limited number.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.cep.algebra import PacketEvents
from penstock.cep.program import Program
from penstock.cep.topic_index import TopicIndex

_LIMIT: Final = 50_000
_NOTHING: Final[dict[str, Any]] = {}


class WatchedTopics:
    """The topics of one program."""

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
            if len(self._known) >= _LIMIT:
                self._known.clear()
            known = self._known[topic] = any(
                _could_be(self._kinds[place], topic) for place in self._index.find(topic)
            )
        return known


def _could_be(kind: PacketEvents, topic: str) -> bool:
    if not kind.when.references <= {"t.topic"}:
        return True
    return kind.when.function(_NOTHING, _NOTHING, _NOTHING, {"topic": topic}) is True
