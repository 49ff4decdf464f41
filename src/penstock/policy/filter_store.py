"""Stores of values by topic filter: what each answers, the flat one that scans, a cache by topic.

Rules that hold here:
- Every store gives the same answers; they differ in the work only. The flat one looks at
  all its filters for each question: it is the plain measure for the tree.
- Values are never None: None says that a filter is not there.
- Filters have at most so many levels: each may cost a node.
- A hit is one dictionary lookup: `cache[topic]`, with the topic as text or as UTF-8 bytes.
- `forget(filter)` drops exactly the topics that the filter matches; the index finds them
  without looking at the others.
- At most `limit` entries; the oldest goes first. Long topics are answered but not kept, so
  that the limit bounds the memory, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from penstock.errors import quote
from penstock.model.topics import TopicError, covers, decode_topic, matches, overlaps
from penstock.policy.filter_tree import FilterTree

LEVEL_LIMIT = 200

V = TypeVar("V")


def check_depth(filter_: str) -> str:
    """Return the filter if it is not too deep to be stored."""
    levels = filter_.count("/") + 1
    if levels > LEVEL_LIMIT:
        raise TopicError(
            f"filter {quote(filter_)} has {levels} levels", fix=f"use at most {LEVEL_LIMIT}"
        )
    return filter_


class FilterStore(Protocol[V]):
    """Values by topic filter."""

    def __len__(self) -> int: ...

    def get(self, filter_: str) -> V | None:
        """Return the value of exactly this filter."""
        ...

    def set(self, filter_: str, value: V) -> V | None:
        """Set the value of a filter and return the one it had."""
        ...

    def remove(self, filter_: str) -> V | None:
        """Remove a filter and return the value it had."""
        ...

    def clear(self) -> None:
        """Forget all filters."""
        ...

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all filters and their values."""
        ...

    def matching(self, topic: str) -> list[V]:
        """Return the values of all filters that match the topic."""
        ...

    def covering(self, filter_: str) -> list[V]:
        """Return the values of all filters that cover the filter."""
        ...

    def overlapping(self, filter_: str) -> Iterator[tuple[str, V]]:
        """Yield all filters that share a topic with this one, and their values."""
        ...

    def overlapping_values(self, filter_: str) -> Iterator[V]:
        """Yield the values of all filters that share a topic with this one."""
        ...


class FlatFilters(Generic[V]):
    """A dictionary that is scanned."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, filter_: str) -> V | None:
        """Return the value of exactly this filter."""
        return self._values.get(filter_)

    def set(self, filter_: str, value: V) -> V | None:
        """Set the value of a filter and return the one it had."""
        old = self._values.get(filter_)
        self._values[filter_] = value
        return old

    def remove(self, filter_: str) -> V | None:
        """Remove a filter and return the value it had."""
        return self._values.pop(filter_, None)

    def clear(self) -> None:
        """Forget all filters."""
        self._values.clear()

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all filters and their values."""
        return iter(self._values.items())

    def matching(self, topic: str) -> list[V]:
        """Return the values of all filters that match the topic."""
        return [value for filter_, value in self._values.items() if matches(filter_, topic)]

    def covering(self, filter_: str) -> list[V]:
        """Return the values of all filters that cover the filter."""
        return [value for wide, value in self._values.items() if covers(wide, filter_)]

    def overlapping(self, filter_: str) -> Iterator[tuple[str, V]]:
        """Yield all filters that share a topic with this one, and their values."""
        return ((there, v) for there, v in self._values.items() if overlaps(there, filter_))

    def overlapping_values(self, filter_: str) -> Iterator[V]:
        """Yield the values of all filters that share a topic with this one."""
        return (value for _, value in self.overlapping(filter_))


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
