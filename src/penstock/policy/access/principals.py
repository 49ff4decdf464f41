"""Who asks: users, clients, their groups and roles, and the attributes that conditions see.

Rules that hold here:
- Who has a role has all roles that it includes, at any depth.
- Exclusion goes both ways, whichever of two roles names the other, and holds for all roles
  that one has, also for those by inclusion. A role never excludes what it is made of.
- `uid`, `cid`, `groups` and `activeRoles` follow from who asks; no document can set them. Roles are
  activated by all other attributes, and are no attribute themselves while they are.
- A client identifier counts beside a user only, whose identifier it was found to be. Anybody can
  choose one: alone it gives no right, group, policy or attribute, and is no `cid`. What limits
  counts all the same: messages are published for the person whose sensor an identifier is,
  whoever uses it.
- What limits a role limits whoever would have it, also in a session that chose others.
- Of two that give the same attribute the nearer wins: the user's own before the client's,
  these before groups', a group before those that include it, `anyone` last.
- Where groups that are equally near give different values, the attribute is missing: which
  of them is meant is not for the machine to guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from penstock.lang import RecordType, prepare
from penstock.model.kinds import Group, Role
from penstock.model.role_terms import ROLE_PREFIX
from penstock.policy.role_derivation import ActiveRoles
from penstock.policy.role_engine import NO_ROLES, RoleEngine


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


Action = Literal["read", "write"]
ACTIONS: tuple[Action, ...] = ("read", "write")

ANYONE: Final = "anyone"
ANONYMOUS: Final = "anonymous"
"""The name of those who have not authenticated; no definition means them by it."""
BUILT_IN: Final = {
    "uid": "string",
    "cid": "string",
    "groups": "list(string)",
    "activeRoles": "list(string)",
}
"""Attributes of `s` that follow from who asks, where a vocabulary declares them."""


class Principal:
    """Who asks: names as the gateway knows them, and attributes for conditions.

    `given` are attributes of a hypothetical principal, which go before those that are known.
    """

    __slots__ = (
        "_limited",
        "attributes",
        "client",
        "conflicts",
        "generation",
        "given",
        "groups",
        "plans",
        "roles",
        "subjects",
        "user",
    )

    def __init__(
        self,
        user: str | None,
        client: str | None,
        *,
        groups: frozenset[str] = frozenset(),
        attributes: Mapping[str, Any] | None = None,
        conflicts: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
        generation: int = 0,
        roles: ActiveRoles = NO_ROLES,
        role_subjects: Iterable[str] = (),
        unchosen: Iterable[str] = (),
    ) -> None:
        self.user = user
        self.client = client
        self.groups = groups
        self.attributes = attributes or {}
        self.conflicts = conflicts or {}
        self.given = given
        self.generation = generation
        self.roles = roles
        self.subjects = (*list_subjects(user, client, groups), *role_subjects)
        self._limited = frozenset(self.subjects).union(unchosen)
        self.plans: dict[Any, Any] = {}  # what the decision engine remembers of this principal

    def is_limited_by(self, subject: str) -> bool:
        """Tell whether what limits a subject limits them: also by a role that they did not choose.

        Where nobody can tell which roles somebody has, what limits any role does.
        """
        if subject in self._limited:
            return True
        everything = self.roles.unchosen or self.roles
        return bool(everything.trouble) and subject.startswith(ROLE_PREFIX)


def list_subjects(user: str | None, client: str | None, groups: Iterable[str]) -> tuple[str, ...]:
    """Return every text by which definitions can mean this principal."""
    names = [ANYONE, *(f"group:{name}" for name in sorted(groups))]
    if user is not None:
        names.append(f"user:{user}")
        if client is not None:
            names.append(f"client:{client}")
    return tuple(names)


class Membership:
    """Which groups a user or client belongs to, groups within groups included."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        held = {group.name: group for group in groups}
        # Which groups take over the members of a group.
        above: dict[str, list[str]] = {}
        for group in held.values():
            for part in group.includes:
                above.setdefault(part, []).append(group.name)
        self._groups: dict[str, set[str]] = {}
        self._above = {name: frozenset(_reach(name, above)) for name in held}
        for group in held.values():
            reached = self._above[group.name]
            for member in group.members:
                self._groups.setdefault(member, set()).update(reached)

    def groups_of(self, user: str | None, client: str | None) -> frozenset[str]:
        """Return the groups of a user, of a client, and of anyone."""
        found: set[str] = set(self._groups.get(ANYONE, ()))
        if user is not None:
            found |= self._groups.get(f"user:{user}", set())
            if client is not None:
                found |= self._groups.get(f"client:{client}", set())
        return frozenset(found)

    def nearest(self, groups: Iterable[str]) -> list[str]:
        """Leave out of these groups those that include another of them."""
        given = sorted(groups)
        return [
            name
            for name in given
            if not any(
                other != name and name in self._above.get(other, frozenset()) for other in given
            )
        ]


def _reach(start: str, above: Mapping[str, list[str]]) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for name in above.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


@dataclass(frozen=True, slots=True)
class KnownAttributes:
    """What a document says of a user, a client, a group or anyone."""

    values: Mapping[str, Any] = field(default_factory=dict)
    on_behalf_of: str | None = None


class Directory:
    """The attributes of everybody, by subject as definitions write it (`user:ann`)."""

    def __init__(self, record: RecordType | None = None) -> None:
        self.membership = Membership()
        self.roles = RoleEngine()
        self._record = record or RecordType(())
        self._known: dict[str, KnownAttributes] = {}

    def declare(self, record: RecordType) -> None:
        """Say which attributes there are, with their types."""
        self._record = record

    def set(self, subject: str, known: KnownAttributes | None) -> None:
        """Say what is known of a subject, or that nothing is."""
        if known is None:
            self._known.pop(subject, None)
        else:
            self._known[subject] = known

    def publishes_for(self, user: str | None, client: str | None) -> str | None:
        """Return the user on whose behalf messages are published, if it is known.

        The word of a client that nobody has authenticated suffices: preferences only limit.
        """
        for known in reversed(self._own(user, client)):
            if known.on_behalf_of is not None:
                return known.on_behalf_of
        return user

    def resolve(
        self,
        user: str | None,
        client: str | None,
        *,
        given: Mapping[str, Any] | None = None,
        generation: int = 0,
    ) -> Principal:
        """Return a principal with all attributes that are known, checked once."""
        if user is None:
            client = None
        groups = self.membership.groups_of(user, client)
        from_groups, conflicts = self._inherit(groups)
        values: dict[str, Any] = {}
        everybody = self._known.get(ANYONE)
        for layer in (everybody.values if everybody else {}, from_groups):
            values.update(layer)
        for name in conflicts:  # `anyone` does not settle what groups disagree on
            values.pop(name, None)
        for known in reversed(self._own(user, client)):
            values.update(known.values)
        values.update({"uid": user, "cid": client, "groups": sorted(groups)})
        values.update(given or {})
        attributes = prepare(values, self._record)
        roles, role_subjects, unchosen = NO_ROLES, tuple[str, ...](), tuple[str, ...]()
        if user is not None and self.roles.in_use:
            roles = self.roles.activate(user, client, groups, attributes or {}, apart=bool(given))
            role_subjects = tuple(self.roles.subjects(roles))
            if roles.unchosen is not None:
                unchosen = tuple(self.roles.subjects(roles.unchosen))
            if self._record.field("activeRoles") is not None and "activeRoles" not in (given or {}):
                attributes = {**(attributes or {}), "activeRoles": roles.names()}
        return Principal(
            user,
            client,
            groups=groups,
            attributes=attributes,
            conflicts={name: why for name, why in conflicts.items() if name not in values},
            given=given,
            generation=generation,
            roles=roles,
            role_subjects=role_subjects,
            unchosen=unchosen,
        )

    def _own(self, user: str | None, client: str | None) -> list[KnownAttributes]:
        subjects = [f"user:{user}"] if user is not None else []
        subjects += [f"client:{client}"] if client is not None else []
        return [self._known[subject] for subject in subjects if subject in self._known]

    def _inherit(self, groups: frozenset[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what groups give, and why what they disagree on is missing."""
        givers: dict[str, list[str]] = {}
        for group in groups:
            known = self._known.get(f"group:{group}")
            for name in known.values if known else ():
                givers.setdefault(name, []).append(group)
        values: dict[str, Any] = {}
        conflicts: dict[str, str] = {}
        for name, all_givers in givers.items():
            near = self.membership.nearest(all_givers)
            choices = [self._known[f"group:{group}"].values[name] for group in near]
            if all(choice == choices[0] for choice in choices):
                values[name] = choices[0]
            else:
                conflicts[name] = f"the groups {' and '.join(near)} disagree on s.{name}"
        return values, conflicts
