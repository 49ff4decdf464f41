"""Activation rules, compiled: what each needs, and in which order roles are found.

    definitions ──▶ ActivationRule ──▶ Program: rules by role, roles by rank

Rules that hold here:
- A role has a higher rank than every role that it needs or is included by, so that one pass
  in the order of ranks finds all; where inclusion leads back to a prerequisite, a role is
  looked at again.
- A rule of a domain holds for the members of the domain, and of those below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from penstock.model.role_terms import Argument, Variable

Fact = tuple[str, tuple[str, ...]]
"""A role instance, or an appointment: its name and its values."""
Key = tuple[str, str]
"""What a condition looks for: `role` or `appointment`, and the name."""
ROLE: Final = "role"
APPOINTMENT: Final = "appointment"


@dataclass(frozen=True, slots=True)
class Atom:
    """A condition that a fact satisfies: a prerequisite role, or an appointment."""

    key: Key
    arguments: tuple[Argument, ...]
    membership: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on who asks, the environment and the variables of the rule."""

    holds: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, str]], Any]
    """Takes s, e and r; anything but true is no."""
    membership: bool = False
    timed: bool = False
    """Whether it looks at the time."""
    common: bool = False
    """Whether it looks at nothing but the environment: it says the same of everybody."""


@dataclass(frozen=True, eq=False)
class ActivationRule:
    """One way to a role. Two rules are the same where they are one object."""

    name: str
    role: str
    arguments: tuple[Argument, ...]
    atoms: tuple[Atom, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    bindings: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = ()
    """Variables with what gives their value, from s."""
    domain: str | None = None

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """All its variables, in order."""
        found = [name for name, _ in self.bindings]
        for arguments in (*(it.arguments for it in self.atoms), self.arguments):
            found += [
                it.name for it in arguments if isinstance(it, Variable) and not it.is_anything
            ]
        return tuple(dict.fromkeys(found))

    @cached_property
    def needs(self) -> frozenset[Key]:
        """What there must be some fact of."""
        return frozenset(atom.key for atom in self.atoms)

    @cached_property
    def timed(self) -> bool:
        """Whether some constraint looks at the time."""
        return any(it.timed for it in self.constraints)

    @cached_property
    def timed_apart(self) -> bool:
        """Whether some constraint looks at the time, and at who asks."""
        return any(it.timed and not it.common for it in self.constraints)


@dataclass(frozen=True, slots=True)
class RoleShape:
    """What of a role matters here."""

    parameters: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """All roles and rules of one moment."""

    roles: Mapping[str, RoleShape] = field(default_factory=dict)
    rules: tuple[ActivationRule, ...] = ()
    parents: Mapping[str, str | None] = field(default_factory=dict)
    """Domains, with the one above each."""
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The domains of a subject, `user:ann` or `group:nurses`."""

    @cached_property
    def by_role(self) -> Mapping[str, tuple[ActivationRule, ...]]:
        """Rules by the role that they activate, in the order of their names."""
        found: dict[str, list[ActivationRule]] = {}
        for rule in sorted(self.rules, key=lambda it: it.name):
            found.setdefault(rule.role, []).append(rule)
        return {name: tuple(rules) for name, rules in found.items()}

    @cached_property
    def needing(self) -> Mapping[Key, frozenset[str]]:
        """Roles with a rule that needs some fact, by what it needs."""
        found: dict[Key, set[str]] = {}
        for rule in self.rules:
            for key in rule.needs:
                found.setdefault(key, set()).add(rule.role)
        return {key: frozenset(names) for key, names in found.items()}

    @cached_property
    def held(self) -> frozenset[ActivationRule]:
        """The rules, to find out whether one is among them."""
        return frozenset(self.rules)

    @cached_property
    def common_times(self) -> tuple[Constraint, ...]:
        """The constraints on the time that say the same of everybody."""
        found = (it for rule in self.rules for it in rule.constraints)
        return tuple(it for it in found if it.timed and it.common)

    @cached_property
    def including(self) -> Mapping[str, frozenset[str]]:
        """Roles by what they include."""
        found: dict[str, set[str]] = {}
        for name, shape in self.roles.items():
            for included in shape.includes:
                found.setdefault(included, set()).add(name)
        return {name: frozenset(names) for name, names in found.items()}

    @cached_property
    def unconditional(self) -> frozenset[str]:
        """Roles with a rule that needs no fact, only constraints."""
        return frozenset(rule.role for rule in self.rules if not rule.needs)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The place of each role in the order in which they are found."""
        below: dict[str, set[str]] = {name: set() for name in self.roles}
        for rule in self.rules:
            below.setdefault(rule.role, set()).update(
                name for kind, name in rule.needs if kind == ROLE
            )
        for name, shape in self.roles.items():
            for included in shape.includes:
                below.setdefault(included, set()).add(name)
        order: dict[str, int] = {}
        entered: set[str] = set()
        for start in sorted(below):
            stack = [(start, iter(sorted(below.get(start, ()))))]
            entered.add(start)
            while stack:
                name, following = stack[-1]
                # What is on the way already leads back: its place does not matter then.
                step = next((it for it in following if it not in entered), None)
                if step is None:
                    stack.pop()
                    order.setdefault(name, len(order))
                else:
                    entered.add(step)
                    stack.append((step, iter(sorted(below.get(step, ())))))
        return order

    def domains_of(self, subjects: Iterable[str]) -> frozenset[str]:
        """Return the domains that somebody belongs to, with all above them."""
        found: set[str] = set()
        for subject in subjects:
            for name in self.members.get(subject, ()):
                domain: str | None = name
                while domain is not None and domain not in found:
                    found.add(domain)
                    domain = self.parents.get(domain)
        return frozenset(found)

    def support(self, chosen: Iterable[str]) -> frozenset[str]:
        """Return roles with all that they include, and all that they may come from."""
        found: set[str] = set()
        waiting = list(self.included(chosen))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.including.get(name, ())
                for rule in self.by_role.get(name, ()):
                    waiting += [needed for kind, needed in rule.needs if kind == ROLE]
        return frozenset(found)

    def included(self, names: Iterable[str]) -> frozenset[str]:
        """Return roles with all that they include."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            shape = self.roles.get(name)
            if name not in found and shape is not None:
                found.add(name)
                waiting += shape.includes
        return frozenset(found)

    def conflicts(self, names: Iterable[str]) -> frozenset[str]:
        """Return the roles among these that exclude another of them."""
        held = set(names)
        found: set[str] = set()
        for name in held:
            shape = self.roles.get(name)
            for other in shape.excludes if shape is not None else ():
                if other in held and other != name:
                    found |= {name, other}
        return frozenset(found)
