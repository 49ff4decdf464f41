"""A tree of topic filters: finds what matches a topic, covers or overlaps a filter.

The tree mirrors the levels of the filters. A filter keeps the rest of its levels in one
leaf until another filter shares its next level, so that a lone filter costs one dictionary
entry however deep it is; equal leaves are shared.

    a/+/c, a/b/#, x/y/z      root ── a ── + ── leaf(c)
                                  │    └─ b ── leaf(#)
                                  └─ x ── leaf(y, z)

Rules that hold here:
- A leaf is shared by all filters with the same end and value, hence never changed.
- `+` and `#` are attributes of a branch and never names among its children.
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

ONE = "+"
REST = "#"


class Leaf(Generic[V]):
    """The remaining levels of one filter and its value. Shared, hence never changed."""

    __slots__ = ("levels", "value")

    def __init__(self, levels: tuple[str, ...], value: V) -> None:
        self.levels = levels
        self.value = value


class Branch(Generic[V]):
    """A level that filters share: the values that end here, and what goes on."""

    __slots__ = ("children", "here", "one", "rest")

    def __init__(self) -> None:
        self.here: V | None = None
        self.rest: V | None = None
        self.one: Branch[V] | Leaf[V] | None = None
        self.children: dict[str, Branch[V] | Leaf[V]] = {}

    def entry(self, level: str) -> Branch[V] | Leaf[V] | None:
        """Return what goes on at a level of a filter."""
        return self.one if level == ONE else self.children.get(level)

    def put(self, level: str, entry: Branch[V] | Leaf[V]) -> None:
        """Let a level of a filter go on here."""
        if level == ONE:
            self.one = entry
        else:
            self.children[level] = entry

    def drop(self, level: str) -> None:
        """Let a level of a filter end."""
        if level == ONE:
            self.one = None
        else:
            del self.children[level]

    def entries(self, wanted: str) -> list[tuple[str, Branch[V] | Leaf[V]]]:
        """Return the entries that a level of a filter shares a name with."""
        found = [] if self.one is None else [(ONE, self.one)]
        if wanted == ONE:
            found += self.children.items()
        elif wanted in self.children:
            found.append((wanted, self.children[wanted]))
        return found

    def take_ends(self, *, here: bool) -> list[V]:
        """Take out the value of `#` and, if wanted, the one that ends here."""
        taken = [] if self.rest is None else [self.rest]
        self.rest = None
        if here and self.here is not None:
            taken.append(self.here)
            self.here = None
        return taken

    def clear(self) -> None:
        """Let everything end."""
        self.here = self.rest = self.one = None
        self.children = {}

    def fold(self) -> Branch[V] | Leaf[V] | None:
        """Return the smallest entry that says what this branch says."""
        held = (self.here is not None) + (self.rest is not None) + (self.one is not None)
        held += len(self.children)
        if held == 0:
            return None
        if held > 1:
            return self
        if self.here is not None:
            return Leaf((), self.here)
        if self.rest is not None:
            return Leaf((REST,), self.rest)
        level, entry = (ONE, self.one) if self.one else next(iter(self.children.items()))
        if isinstance(entry, Leaf):
            return Leaf((level, *entry.levels), entry.value)
        return self


def below(prefix: str, branch: Branch[V]) -> Iterator[tuple[str, V]]:
    """Yield all filters in a branch, and their values."""
    waiting = [(prefix, branch)]
    while waiting:
        prefix, branch = waiting.pop()
        if branch.here is not None:
            yield prefix[:-1], branch.here
        if branch.rest is not None:
            yield f"{prefix}#", branch.rest
        single = [(ONE, branch.one)] if branch.one else []
        for level, entry in chain(branch.children.items(), single):
            if isinstance(entry, Leaf):
                yield join_text(f"{prefix}{level}/", entry.levels), entry.value
            else:
                waiting.append((f"{prefix}{level}/", entry))


def values_below(branch: Branch[V]) -> Iterator[V]:
    """Yield the values of all filters in a branch."""
    waiting = [branch]
    while waiting:
        branch = waiting.pop()
        if branch.here is not None:
            yield branch.here
        if branch.rest is not None:
            yield branch.rest
        for entry in chain(branch.children.values(), [branch.one] if branch.one else []):
            if isinstance(entry, Leaf):
                yield entry.value
            else:
                waiting.append(entry)


def join_text(prefix: str, levels: tuple[str, ...]) -> str:
    """Put the text of a filter together; the prefix ends with its slash."""
    return prefix + "/".join(levels) if levels else prefix[:-1]


def split_filter(filter_: str) -> tuple[list[str], bool]:
    """Split into levels and whether anything may follow them."""
    levels = filter_.split("/")
    open_ended = levels[-1] == REST
    if open_ended:
        levels.pop()
    return levels, open_ended


def leaf_covers(leaf: tuple[str, ...], levels: list[str], depth: int, *, open_ended: bool) -> bool:
    """Tell whether the levels from this depth on are among those the leaf means."""
    last = len(levels)
    for level in leaf:
        if level == REST:
            return True
        if depth == last or (level != ONE and level != levels[depth]):
            return False
        depth += 1
    return depth == last and not open_ended


def leaf_overlaps(leaf: tuple[str, ...], levels: list[str], *, open_ended: bool) -> bool:
    """Tell whether some levels are meant by both the leaf and the rest of a filter."""
    for level, wanted in zip(leaf, levels, strict=False):
        if level == REST:
            return True
        if level != wanted and ONE not in (level, wanted):
            return False
    if len(leaf) > len(levels):
        return open_ended or leaf[len(levels)] == REST
    return len(leaf) == len(levels)


_POOL_LIMIT = 4_096


class FilterTree(Generic[V]):
    """Values by topic filter. With `share`, equal ends of filters with one value are shared."""

    __slots__ = ("_count", "_dollar", "_plain", "_pool", "_share")

    def __init__(self, *, share: bool = False) -> None:
        self._share = share
        self.clear()

    def clear(self) -> None:
        """Forget all filters."""
        self._plain: Branch[V] = Branch()
        self._dollar: Branch[V] = Branch()
        self._pool: dict[tuple[tuple[str, ...], int], Leaf[V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, filter_: str) -> V | None:
        """Return the value of exactly this filter."""
        levels = filter_.split("/")
        node = self._root(filter_)
        for place, level in enumerate(levels):
            if level == REST:
                return node.rest
            entry = node.entry(level)
            if entry is None:
                return None
            if isinstance(entry, Leaf):
                return entry.value if entry.levels == tuple(levels[place + 1 :]) else None
            node = entry
        return node.here

    def set(self, filter_: str, value: V) -> V | None:
        """Set the value of a filter and return the one it had."""
        levels = filter_.split("/")
        node = self._root(filter_)
        for place, level in enumerate(levels):
            if level == REST:
                old, node.rest = node.rest, value
                break
            entry = node.entry(level)
            if not isinstance(entry, Branch):
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
        path: list[tuple[Branch[V], str]] = []
        for level in filter_.split("/"):
            if level == REST:
                node.rest = None
                break
            entry = node.entry(level)
            if not isinstance(entry, Branch):
                node.drop(level)
                break
            path.append((node, level))
            node = entry
        else:
            node.here = None
        while path:
            parent, level = path.pop()
            if not _refold(parent, level, node):
                break
            node = parent
        return old

    def take(self, filter_: str) -> list[V]:
        """Remove all filters that share a topic with this one, and return their values.

        Whole branches go at once: far less work than removing filter after filter.
        """
        levels, open_ended = split_filter(filter_)
        last = len(levels)
        root = self._root(filter_)
        taken: list[V] = []
        visited: list[tuple[Branch[V], str, Branch[V]]] = []
        waiting = [(root, 0)]
        while waiting:
            branch, depth = waiting.pop()
            if depth == last and open_ended:  # `#` alone: this is the root
                taken += values_below(branch)
                branch.clear()
                break
            taken += branch.take_ends(here=depth == last)
            for level, entry in branch.entries(levels[depth]) if depth < last else ():
                if isinstance(entry, Branch):
                    if depth + 1 < last or not open_ended:
                        visited.append((branch, level, entry))
                        waiting.append((entry, depth + 1))
                        continue
                    taken += values_below(entry)
                elif leaf_overlaps(entry.levels, levels[depth + 1 :], open_ended=open_ended):
                    taken.append(entry.value)
                else:
                    continue
                branch.drop(level)
        while visited:
            parent, level, branch = visited.pop()
            _refold(parent, level, branch)
        self._count -= len(taken)
        return taken

    def matching(self, topic: str) -> list[V]:
        """Return the values of all filters that match the topic."""
        return self._collect(self._root(topic), topic.split("/"), open_ended=False)

    def covering(self, filter_: str) -> list[V]:
        """Return the values of all filters that cover the filter."""
        levels, open_ended = split_filter(filter_)
        # Every topic has a first level, so `#` says the same as `+/#`.
        return self._collect(self._root(filter_), levels or [ONE], open_ended=open_ended)

    def overlapping(self, filter_: str) -> Iterator[tuple[str, V]]:
        """Yield all filters that share a topic with this one, and their values.

        A topic is a filter, too: what overlaps it matches it. The tree must not change
        while the answers are read.
        """
        for prefix, entry in self._reach(filter_):
            if isinstance(entry, Leaf):
                yield join_text(prefix, entry.levels), entry.value
            else:
                yield from below(prefix, entry)

    def overlapping_values(self, filter_: str) -> Iterator[V]:
        """Yield the values of all filters that share a topic with this one.

        Putting the texts together is most of the work of `overlapping`.
        """
        for _, entry in self._reach(filter_):
            if isinstance(entry, Leaf):
                yield entry.value
            else:
                yield from values_below(entry)

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all filters and their values."""
        yield from below("", self._plain)
        yield from below("", self._dollar)

    def _root(self, text: str) -> Branch[V]:
        return self._dollar if text.startswith("$") else self._plain

    def _leaf(self, levels: tuple[str, ...], value: V) -> Leaf[V]:
        if not self._share:
            return Leaf(levels, value)
        # The leaf in the pool keeps its value alive, so the id is not given to another.
        key = (levels, id(value))
        leaf = self._pool.get(key)
        if leaf is None:
            if len(self._pool) >= _POOL_LIMIT:
                self._pool.clear()
            leaf = self._pool[key] = Leaf(levels, value)
        return leaf

    def _grow(self, node: Branch[V], level: str, leaf: Leaf[V]) -> Branch[V]:
        """Replace a leaf by a branch that holds the same filter one level down."""
        branch: Branch[V] = Branch()
        if not leaf.levels:
            branch.here = leaf.value
        elif leaf.levels[0] == REST:
            branch.rest = leaf.value
        else:
            branch.put(leaf.levels[0], self._leaf(leaf.levels[1:], leaf.value))
        node.put(level, branch)
        return branch

    def _collect(self, node: Branch[V], levels: list[str], *, open_ended: bool) -> list[V]:
        """Walk down along the levels; where both the name and `+` go on, `+` waits."""
        found: list[V] = []
        waiting: list[tuple[Branch[V] | Leaf[V], int]] = []
        last = len(levels)
        depth = 0
        entry: Branch[V] | Leaf[V] = node
        while True:
            if isinstance(entry, Leaf):
                if leaf_covers(entry.levels, levels, depth, open_ended=open_ended):
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

    def _reach(self, filter_: str) -> Iterator[tuple[str, Branch[V] | Leaf[V]]]:
        """Yield prefix and entry: a leaf that overlaps, or a branch that does as a whole.

        A prefix ends with its slash, so that an empty level below it can be told.
        """
        levels, open_ended = split_filter(filter_)
        last = len(levels)
        waiting: list[tuple[Branch[V] | Leaf[V], int, str]] = [(self._root(filter_), 0, "")]
        while waiting:
            entry, depth, prefix = waiting.pop()
            if isinstance(entry, Leaf):
                if leaf_overlaps(entry.levels, levels[depth:], open_ended=open_ended):
                    yield prefix, entry
                continue
            if depth == last and open_ended:
                yield prefix, entry
                continue
            if entry.rest is not None:
                yield prefix, Leaf((REST,), entry.rest)
            if depth == last:
                if entry.here is not None:
                    yield prefix, Leaf((), entry.here)
                continue
            waiting.extend(
                (named, depth + 1, f"{prefix}{level}/")
                for level, named in entry.entries(levels[depth])
            )


def _refold(parent: Branch[V], level: str, branch: Branch[V]) -> bool:
    """Put the smallest entry in the place of a branch; tell whether it is another one."""
    folded = branch.fold()
    if folded is None:
        parent.drop(level)
    elif folded is not branch:
        parent.put(level, folded)
    return folded is not branch
