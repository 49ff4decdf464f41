"""Separation of duties: no user, and no role, has two roles that exclude each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.errors import Problem, quote
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.kinds import Role, User
from penstock.policy.access.roles import RoleGraph


def check_roles(
    touched: Iterable[Role], definitions: Mapping[Key, Definition]
) -> Iterator[tuple[Key, Problem]]:
    """Yield roles that exclude themselves, or that are made of roles which exclude each other."""
    graph = _graph(definitions)
    for role in touched:
        for index, other in enumerate(role.excludes):
            if other == role.name:
                problem = Problem(
                    f"excludes[{index}]", "a role cannot exclude itself", "remove it from the list"
                )
                yield role.key, problem
        for one, other in graph.conflicts([role.name]):
            problem = Problem(
                "includes",
                f"nobody could have it: it is made of {quote(one)} and {quote(other)}, "
                "which exclude each other",
                "include one of the two",
            )
            yield role.key, problem


def check_users(
    touched: Iterable[User], definitions: Mapping[Key, Definition]
) -> Iterator[tuple[Key, Problem]]:
    """Yield users who would have roles that exclude each other."""
    graph = _graph(definitions)
    for user in touched:
        for one, other in graph.conflicts(user.roles):
            way = ", ".join(sorted({*graph.ways(user.roles, one), *graph.ways(user.roles, other)}))
            problem = Problem(
                "roles",
                f"{quote(one)} and {quote(other)} exclude each other, and the user has both "
                f"(by {way})",
                "take one of them away",
            )
            yield user.key, problem


def _graph(definitions: Mapping[Key, Definition]) -> RoleGraph:
    return RoleGraph({key.name: it for key, it in definitions.items() if isinstance(it, Role)})
