"""The nodes of a filter tree: leaves and branches, and what can be asked of each.

Rules that hold here:
- A leaf is shared by all filters with the same end and value, hence never changed.
- `+` and `#` are attributes of a branch and never names among its children.
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
