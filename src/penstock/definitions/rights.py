"""Rights of people, who prove who they are: which `right` definition gives somebody something.

Rules that hold here:
- Nobody has a right that is not given, to them or to a group that they are in. A right of
  `anyone` or of a client is no right of a person.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.definitions.set import DefinitionSet
from penstock.model.kinds import Group, Right
from penstock.policy.access.principals import Membership


def find_right(definitions: DefinitionSet, user: str, gives: Callable[[Right], bool]) -> str | None:
    """Return the name of a right that gives a user something; None where nothing does."""
    membership = Membership(definitions.of(Group).values())
    names = {f"group:{name}" for name in membership.groups_of(user, None)}
    names.add(f"user:{user}")
    for name, right in sorted(definitions.of(Right).items()):
        if gives(right) and not names.isdisjoint(right.subjects):
            return name
    return None
