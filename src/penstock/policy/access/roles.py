"""Roles that include others, and roles that nobody may have together.

Rules that hold here:
- Who has a role has all roles that it includes, at any depth.
- Exclusion goes both ways, whichever of two roles names the other, and holds for all roles
  that one has, also for those by inclusion. A role never excludes what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from penstock.model.kinds import Role


class RoleGraph:
    """The roles of one moment. Their inclusions lead nowhere back: the set was checked.

    Where that check failed, and the roles are looked at all the same to tell all that is
    wrong at once, a circle is walked once.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.roles = roles
        self._held: dict[str, frozenset[str]] = {}

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Return these roles and all that they include; unknown ones are none."""
        return frozenset().union(*(self._closure(name) for name in names))

    def _closure(self, start: str) -> frozenset[str]:
        held = self._held.get(start)
        if held is None:
            found: set[str] = set()
            waiting = [start]
            while waiting:
                name = waiting.pop()
                role = self.roles.get(name)
                if role is not None and name not in found:
                    found.add(name)
                    waiting += role.includes
            held = self._held[start] = frozenset(found)
        return held

    def conflicts(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield each pair of roles among these, or included by them, that exclude each other."""
        held = self.closure(names)
        for name in sorted(held & self._excluded.keys()):
            for other in sorted(self._excluded[name] & held):
                if name < other:
                    yield name, other

    def ways(self, names: Iterable[str], wanted: str) -> list[str]:
        """Return which of these roles are or include the wanted one."""
        return [name for name in names if wanted in self._closure(name)]

    @cached_property
    def _excluded(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, role in self.roles.items():
            for other in role.excludes:
                found.setdefault(name, set()).add(other)
                found.setdefault(other, set()).add(name)
        return found
