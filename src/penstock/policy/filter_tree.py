"""A tree of topic filters: finds what matches a topic, covers or overlaps a filter.

The tree mirrors the levels of the filters. A filter keeps the rest of its levels in one
leaf until another filter shares its next level, so that a lone filter costs one dictionary
entry however deep it is; equal leaves are shared.

    a/+/c, a/b/#, x/y/z      root ── a ── + ── leaf(c)
                                  │    └─ b ── leaf(#)
                                  └─ x ── leaf(y, z)

Rules that hold here:
- Filters and topics are checked before they come in (`penstock.model.topics`).
- The work of `matching` and `covering` follows the levels of the question, not the number
  of filters; that of `overlapping` follows the number of answers.
- Filters that begin with `$` stand in a tree of their own: there is no topic that one of
  them and a filter with a leading wildcard both match.
- Nothing recurses; removing the last filter below a node removes or folds the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

V = TypeVar("V")

_ONE = "+"
_REST = "#"
_POOL_LIMIT = 4_096


class _Leaf(Generic[V]):
    """The remaining levels of one filter and its value. Shared, hence never changed."""

    __slots__ = ("levels", "value")

    def __init__(self, levels: tuple[str, ...], value: V) -> None:
        self.levels = levels
        self.value = value


class _Branch(Generic[V]):
    """A level that filters share: the values that end here, and what goes on."""

    __slots__ = ("children", "here", "one", "rest")

    def __init__(self) -> None:
        self.here: V | None = None
        self.rest: V | None = None
        self.one: _Branch[V] | _Leaf[V] | None = None
        self.children: dict[str, _Branch[V] | _Leaf[V]] = {}

    def entry(self, level: str) -> _Branch[V] | _Leaf[V] | None:
        return self.one if level == _ONE else self.children.get(level)

    def put(self, level: str, entry: _Branch[V] | _Leaf[V]) -> None:
        if level == _ONE:
            self.one = entry
        else:
            self.children[level] = entry

    def drop(self, level: str) -> None:
        if level == _ONE:
            self.one = None
        else:
            del self.children[level]

    def fold(self) -> _Branch[V] | _Leaf[V] | None:
        """Return the smallest entry that says what this branch says."""
        held = (self.here is not None) + (self.rest is not None) + (self.one is not None)
        held += len(self.children)
        if held == 0:
            return None
        if held > 1:
            return self
        if self.here is not None:
            return _Leaf((), self.here)
        if self.rest is not None:
            return _Leaf((_REST,), self.rest)
        level, entry = (_ONE, self.one) if self.one else next(iter(self.children.items()))
        if isinstance(entry, _Leaf):
            return _Leaf((level, *entry.levels), entry.value)
        return self


class FilterTree(Generic[V]):
    """Values by topic filter. With `share`, equal ends of filters with one value are shared."""

    __slots__ = ("_count", "_dollar", "_plain", "_pool", "_share")

    def __init__(self, *, share: bool = False) -> None:
        self._share = share
        self.clear()

    def clear(self) -> None:
        """Forget all filters."""
        self._plain: _Branch[V] = _Branch()
        self._dollar: _Branch[V] = _Branch()
        self._pool: dict[tuple[tuple[str, ...], int], _Leaf[V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, filter_: str) -> V | None:
        """Return the value of exactly this filter."""
        levels = filter_.split("/")
        node = self._root(filter_)
        for place, level in enumerate(levels):
            if level == _REST:
                return node.rest
            entry = node.entry(level)
            if entry is None:
                return None
            if isinstance(entry, _Leaf):
                return entry.value if entry.levels == tuple(levels[place + 1 :]) else None
            node = entry
        return node.here

    def set(self, filter_: str, value: V) -> V | None:
        """Set the value of a filter and return the one it had."""
        levels = filter_.split("/")
        node = self._root(filter_)
        for place, level in enumerate(levels):
            if level == _REST:
                old, node.rest = node.rest, value
                break
            entry = node.entry(level)
            if not isinstance(entry, _Branch):
                ahead = tuple(levels[place + 1 :])
                if entry is None or entry.levels == ahead:
                    node.put(level, self._leaf(ahead, value))
                    old = entry.value if entry else None
                    break
                entry = self._grow(node, level, entry)
            node = entry
        else:
            old, node.here = node.here, value
        self._count += old is None
        return old

    def remove(self, filter_: str) -> V | None:
        """Remove a filter and return the value it had."""
        old = self.get(filter_)
        if old is None:
            return None
        self._count -= 1
        node = self._root(filter_)
        path: list[tuple[_Branch[V], str]] = []
        for level in filter_.split("/"):
            if level == _REST:
                node.rest = None
                break
            entry = node.entry(level)
            if not isinstance(entry, _Branch):
                node.drop(level)
                break
            path.append((node, level))
            node = entry
        else:
            node.here = None
        while path:
            parent, level = path.pop()
            folded = node.fold()
            if folded is node:
                break
            if folded is None:
                parent.drop(level)
            else:
                parent.put(level, folded)
            node = parent
        return old

    def matching(self, topic: str) -> list[V]:
        """Return the values of all filters that match the topic."""
        return self._collect(self._root(topic), topic.split("/"), open_ended=False)

    def covering(self, filter_: str) -> list[V]:
        """Return the values of all filters that cover the filter."""
        levels, open_ended = _split(filter_)
        # Every topic has a first level, so `#` says the same as `+/#`.
        return self._collect(self._root(filter_), levels or [_ONE], open_ended=open_ended)

    def overlapping(self, filter_: str) -> Iterator[tuple[str, V]]:
        """Yield all filters that share a topic with this one, and their values.

        A topic is a filter, too: what overlaps it matches it. The tree must not change
        while the answers are read.
        """
        for prefix, entry in self._reach(filter_):
            if isinstance(entry, _Leaf):
                yield _text(prefix, entry.levels), entry.value
            else:
                yield from _below(prefix, entry)

    def overlapping_values(self, filter_: str) -> Iterator[V]:
        """Yield the values of all filters that share a topic with this one.

        Putting the texts together is most of the work of `overlapping`.
        """
        for _, entry in self._reach(filter_):
            if isinstance(entry, _Leaf):
                yield entry.value
            else:
                yield from _values_below(entry)

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all filters and their values."""
        yield from _below("", self._plain)
        yield from _below("", self._dollar)

    def _root(self, text: str) -> _Branch[V]:
        return self._dollar if text.startswith("$") else self._plain

    def _leaf(self, levels: tuple[str, ...], value: V) -> _Leaf[V]:
        if not self._share:
            return _Leaf(levels, value)
        # The leaf in the pool keeps its value alive, so the id is not given to another.
        key = (levels, id(value))
        leaf = self._pool.get(key)
        if leaf is None:
            if len(self._pool) >= _POOL_LIMIT:
                self._pool.clear()
            leaf = self._pool[key] = _Leaf(levels, value)
        return leaf

    def _grow(self, node: _Branch[V], level: str, leaf: _Leaf[V]) -> _Branch[V]:
        """Replace a leaf by a branch that holds the same filter one level down."""
        branch: _Branch[V] = _Branch()
        if not leaf.levels:
            branch.here = leaf.value
        elif leaf.levels[0] == _REST:
            branch.rest = leaf.value
        else:
            branch.put(leaf.levels[0], self._leaf(leaf.levels[1:], leaf.value))
        node.put(level, branch)
        return branch

    def _collect(self, node: _Branch[V], levels: list[str], *, open_ended: bool) -> list[V]:
        """Walk down along the levels; where both the name and `+` go on, `+` waits."""
        found: list[V] = []
        waiting: list[tuple[_Branch[V] | _Leaf[V], int]] = []
        last = len(levels)
        depth = 0
        entry: _Branch[V] | _Leaf[V] = node
        while True:
            if isinstance(entry, _Leaf):
                if _leaf_covers(entry.levels, levels, depth, open_ended=open_ended):
                    found.append(entry.value)
            else:
                if entry.rest is not None:
                    found.append(entry.rest)
                if depth < last:
                    named = entry.children.get(levels[depth])
                    depth += 1
                    if entry.one is not None:
                        waiting.append((entry.one, depth))
                    if named is not None:
                        entry = named
                        continue
                elif entry.here is not None and not open_ended:
                    found.append(entry.here)
            if not waiting:
                return found
            entry, depth = waiting.pop()

    def _reach(self, filter_: str) -> Iterator[tuple[str, _Branch[V] | _Leaf[V]]]:
        """Yield prefix and entry: a leaf that overlaps, or a branch that does as a whole.

        A prefix ends with its slash, so that an empty level below it can be told.
        """
        levels, open_ended = _split(filter_)
        last = len(levels)
        waiting: list[tuple[_Branch[V] | _Leaf[V], int, str]] = [(self._root(filter_), 0, "")]
        while waiting:
            entry, depth, prefix = waiting.pop()
            if isinstance(entry, _Leaf):
                if _leaf_overlaps(entry.levels, levels[depth:], open_ended=open_ended):
                    yield prefix, entry
                continue
            if depth == last and open_ended:
                yield prefix, entry
                continue
            if entry.rest is not None:
                yield prefix, _Leaf((_REST,), entry.rest)
            if depth == last:
                if entry.here is not None:
                    yield prefix, _Leaf((), entry.here)
                continue
            if entry.one is not None:
                waiting.append((entry.one, depth + 1, f"{prefix}+/"))
            if levels[depth] == _ONE:
                waiting.extend(
                    (below, depth + 1, f"{prefix}{level}/")
                    for level, below in entry.children.items()
                )
            else:
                named = entry.children.get(levels[depth])
                if named is not None:
                    waiting.append((named, depth + 1, f"{prefix}{levels[depth]}/"))


def _below(prefix: str, branch: _Branch[V]) -> Iterator[tuple[str, V]]:
    """Yield all filters in a branch, and their values."""
    waiting = [(prefix, branch)]
    while waiting:
        prefix, branch = waiting.pop()
        if branch.here is not None:
            yield prefix[:-1], branch.here
        if branch.rest is not None:
            yield f"{prefix}#", branch.rest
        single = [(_ONE, branch.one)] if branch.one else []
        for level, entry in chain(branch.children.items(), single):
            if isinstance(entry, _Leaf):
                yield _text(f"{prefix}{level}/", entry.levels), entry.value
            else:
                waiting.append((f"{prefix}{level}/", entry))


def _values_below(branch: _Branch[V]) -> Iterator[V]:
    """Yield the values of all filters in a branch."""
    waiting = [branch]
    while waiting:
        branch = waiting.pop()
        if branch.here is not None:
            yield branch.here
        if branch.rest is not None:
            yield branch.rest
        for entry in chain(branch.children.values(), [branch.one] if branch.one else []):
            if isinstance(entry, _Leaf):
                yield entry.value
            else:
                waiting.append(entry)


def _text(prefix: str, levels: tuple[str, ...]) -> str:
    return prefix + "/".join(levels) if levels else prefix[:-1]


def _split(filter_: str) -> tuple[list[str], bool]:
    """Split into levels and whether anything may follow them."""
    levels = filter_.split("/")
    open_ended = levels[-1] == _REST
    if open_ended:
        levels.pop()
    return levels, open_ended


def _leaf_covers(leaf: tuple[str, ...], levels: list[str], depth: int, *, open_ended: bool) -> bool:
    """Tell whether the levels from this depth on are among those the leaf means."""
    last = len(levels)
    for level in leaf:
        if level == _REST:
            return True
        if depth == last or (level != _ONE and level != levels[depth]):
            return False
        depth += 1
    return depth == last and not open_ended


def _leaf_overlaps(leaf: tuple[str, ...], levels: list[str], *, open_ended: bool) -> bool:
    """Tell whether some levels are meant by both the leaf and the rest of a filter."""
    for level, wanted in zip(leaf, levels, strict=False):
        if level == _REST:
            return True
        if level != wanted and _ONE not in (level, wanted):
            return False
    if len(leaf) > len(levels):
        return open_ended or leaf[len(levels)] == _REST
    return len(leaf) == len(levels)
