"""A bounded cache of what was worked out per topic, indexed so that forgetting is cheap.

Rules that hold here:
- A hit is one dictionary lookup: `cache[topic]`, with the topic as text or as UTF-8 bytes.
- `forget(filter)` drops exactly the topics that the filter matches; the index finds them
  without looking at the others.
- At most `limit` entries; the oldest goes first. Long topics are answered but not kept, so
  that the limit bounds the memory, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from penstock.model.topics import decode_topic
from penstock.policy.filters.tree import FilterTree

V = TypeVar("V")

LONGEST_TOPIC = 512


class TopicCache(dict[str | bytes, V]):
    """What `work_out` gives for a topic, kept until it is forgotten or pushed out."""

    __slots__ = ("_index", "_limit", "_order", "_work_out")

    def __init__(self, work_out: Callable[[str], V], limit: int) -> None:
        super().__init__()
        self._work_out = work_out
        self._limit = limit
        self._order: deque[str | bytes] = deque()
        self._index: FilterTree[str] = FilterTree()

    def __missing__(self, key: str | bytes) -> V:
        topic = decode_topic(key) if isinstance(key, bytes) else key
        value = self._work_out(topic)
        if len(key) > LONGEST_TOPIC or not self._limit:
            return value
        # A forgotten topic keeps its place in the order: that bounds the order as well, at
        # the price that a topic which comes back may be pushed out early.
        if len(self._order) >= self._limit:
            self._drop(self._order.popleft())
        self._order.append(key)
        self._index.set(topic, topic)
        self[key] = value
        return value

    def forget(self, filter_: str) -> None:
        """Drop the topics that the filter matches."""
        if not self:
            return
        forgotten = self._index.take(filter_)
        if not len(self._index):
            self.clear()
            return
        for topic in forgotten:
            self.pop(topic, None)
            self.pop(topic.encode(), None)

    def forget_all(self) -> None:
        """Drop everything."""
        self.clear()
        self._order.clear()
        self._index.clear()

    def _drop(self, key: str | bytes) -> None:
        if self.pop(key, None) is None:
            return
        topic = key.decode() if isinstance(key, bytes) else key
        twin = topic if isinstance(key, bytes) else topic.encode()
        if twin not in self:
            self._index.remove(topic)
