"""Generalization hierarchies: trees whose leaves are values and whose nodes are more general.

    (Europe)                 level 2
      ├─ (Germany)           level 1
      │    ├─ Berlin
      │    └─ Potsdam
      └─ (France) …

Rules that hold here:
- A value stands in the tree once. Leaves are the values that records hold; a level counts
  steps up from the leaf, and the root is as far as it goes.
- Written as nested nodes: `{value, children}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Self

from pydantic import Field as Parameter
from pydantic import model_validator

from penstock.errors import quote
from penstock.model.definition import Part

MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 32


class Node(Part):
    """A value or group of values, and what it stands for."""

    value: Annotated[str, Parameter(max_length=4096)] = Parameter(
        description="The value, or the name of the group."
    )
    children: tuple[Node, ...] = Parameter(
        default=(), strict=False, description="What the group stands for; none for a value."
    )


class Hierarchy(Node):
    """The root of a hierarchy."""

    @model_validator(mode="after")
    def _check_tree(self) -> Self:
        seen: set[str] = set()
        for path in self._walk():
            node = path[-1]
            if len(path) > MAX_DEPTH:
                raise ValueError(f"{quote(node.value)} lies deeper than {MAX_DEPTH} levels")
            if node.value in seen:
                raise ValueError(f"{quote(node.value)} stands in the hierarchy twice")
            seen.add(node.value)
            if len(seen) > MAX_NODES:
                raise ValueError(f"it has more than {MAX_NODES} nodes")
        if not self.children:
            raise ValueError("it has no values → give the root children")
        return self

    def _walk(self) -> Iterator[tuple[Node, ...]]:
        """Yield the way from the root to each node."""
        stack: list[tuple[Node, ...]] = [(self,)]
        while stack:
            path = stack.pop()
            yield path
            stack.extend((*path, child) for child in path[-1].children)

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """The leaves, each with its ancestors from the nearest to the root."""
        return {
            path[-1].value: tuple(node.value for node in reversed(path[:-1]))
            for path in self._walk()
            if not path[-1].children
        }

    @property
    def height(self) -> int:
        """The steps from the deepest leaf to the root."""
        return max(map(len, self.paths.values()))

    def at_level(self, level: int) -> dict[str, str]:
        """Return the generalization of each leaf, so many steps up or at the root."""
        return {
            leaf: ancestors[min(level, len(ancestors)) - 1]
            for leaf, ancestors in self.paths.items()
        }
