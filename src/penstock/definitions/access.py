"""Compiles definitions for the decision engine, and updates it with their changes.

Rules that hold here:
- A change compiles what it touches: one policy, the emergency policies of a plan, or, where
  a vocabulary changes, every condition.
- The outcome is the one that compiling the whole set afresh would have.
- Nobody has a `right` that is not given to them or to a group that they are in. A right of
  `anyone` or of a client is no right of a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.definitions.set import DefinitionSet
from penstock.lang import BOOL, STRING, RecordType, Scope, compile_expression
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.policy.access.attribute_values import read_value
from penstock.policy.access.emergencies import Emergency
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import Enforcement
from penstock.policy.access.principals import KnownAttributes, Membership
from penstock.policy.access.roles import RoleGraph
from penstock.policy.access.rules import Policy, Preference
from penstock.policy.purposes.claims import Grant

RULE_KINDS: Final = kinds.kinds_of(kinds.Concern.RULES)
SETTING_KINDS: Final = kinds.kinds_of(kinds.Concern.SETTINGS)
ACCESS_KINDS: Final = kinds.kinds_of(kinds.Concern.ACCESS)
"""The kinds of definitions that decide on access."""


class AccessDefinitions:
    """A decision engine that follows a set of definitions."""

    def __init__(self, definitions: DefinitionSet | None = None) -> None:
        self.access = AccessEngine()
        if definitions is not None:
            self.take(definitions, definitions.definitions)

    def take(self, definitions: DefinitionSet, changed: Iterable[Key]) -> bool:
        """Follow a changed set; tell whether anything that decides on access changed."""
        keys = {key for key in changed if key.kind in ACCESS_KINDS}
        if not keys:
            return False
        touched = {key.kind for key in keys}
        if "vocabulary" in touched:
            keys |= {key for key in definitions.definitions if key.kind in ACCESS_KINDS}
            self.access.declare(definitions.scope.root("s") or RecordType(()))
        elif touched & SETTING_KINDS:
            keys |= {key for key in definitions.definitions if key.kind == "emergency-policy"}
        if "group" in touched:
            self.access.assemble(definitions.of(kinds.Group).values())
        if touched & (SETTING_KINDS | {"vocabulary"}):
            self.access.configure(compile_settings(definitions))
        self._take_rules(definitions, [key for key in sorted(keys) if key.kind in RULE_KINDS])
        for key in sorted(keys):
            if key.kind == "object":
                self.access.shape(key.name, definitions.get(kinds.ObjectShape, key.name))
            elif key.kind == "attributes":
                held = definitions.get(kinds.Attributes, key.name)
                known = compile_attributes(held, definitions.scope) if held else None
                self.access.describe(key.name, known)
        return True

    def _take_rules(self, definitions: DefinitionSet, keys: list[Key]) -> None:
        gone = [name_rule(key) for key in keys if key not in definitions.definitions]
        if gone:
            self.access.remove(*gone)
        held = [definitions.definitions[key] for key in keys if key in definitions.definitions]
        if held:
            scenarios = scenarios_by_plan(definitions)
            self.access.put(*(compile_rule(it, definitions, scenarios) for it in held))


def name_rule(key: Key) -> str:
    """Return what a rule is called in explanations."""
    return f"{key.kind} {key.name}"


def compile_rule(
    definition: Definition, definitions: DefinitionSet, scenarios: Mapping[str, tuple[str, ...]]
) -> Policy | Preference:
    """Compile a policy, an emergency policy or a preference."""
    scope = definitions.scope
    name = name_rule(definition.key)
    if isinstance(definition, kinds.Preference):
        condition = compile_expression(definition.when, scope, BOOL)
        return Preference(name, definition.user, definition.filter, condition)
    if not isinstance(definition, kinds.Policy | kinds.EmergencyPolicy):
        raise TypeError(f"{name} does not decide on access")
    emergency = None
    if isinstance(definition, kinds.EmergencyPolicy):
        emergency = compile_emergency(definition, definitions, scenarios)
    return Policy(
        name,
        definition.subject,
        definition.filter,
        definition.allow,
        compile_expression(definition.when, scope, BOOL),
        emergency,
    )


def compile_emergency(
    policy: kinds.EmergencyPolicy,
    definitions: DefinitionSet,
    scenarios: Mapping[str, tuple[str, ...]],
) -> Emergency:
    """Compile when an emergency policy applies."""
    situations: frozenset[str] | None = frozenset(policy.situations) or None
    plan = definitions.get(kinds.Plan, policy.plan)
    if policy.minimum_level is not None and plan is not None:
        level = policy.minimum_level
        situations = frozenset(it.id for it in plan.situations if it.level >= level)
    return Emergency(
        policy.scenarios or scenarios.get(policy.plan, ()),
        situations,
        compile_expression(policy.about, definitions.scope, STRING) if policy.about else None,
        policy.exclusive,
    )


def scenarios_by_plan(definitions: DefinitionSet) -> dict[str, tuple[str, ...]]:
    """Return the scenarios that follow each plan, in the order of their names."""
    found: dict[str, list[str]] = {}
    for it in definitions.definitions.values():
        if isinstance(it, kinds.Scenario):
            found.setdefault(it.plan, []).append(it.name)
    return {plan: tuple(sorted(names)) for plan, names in found.items()}


def compile_settings(definitions: DefinitionSet) -> Enforcement:
    """Compile what holds for all decisions."""
    enforcement = definitions.get(kinds.Enforcement, "default") or kinds.Enforcement()
    scenarios = scenarios_by_plan(definitions)
    return Enforcement(
        required=enforcement.policies == "required",
        override=enforcement.preferences_in_emergencies == "overridden",
        exclusive=tuple(
            Emergency(
                scenarios.get(item.plan, ()),
                None,
                compile_expression(item.about, definitions.scope, STRING),
                exclusive=True,
            )
            for item in enforcement.exclusive
        ),
    )


def compile_attributes(attributes: kinds.Attributes, scope: Scope) -> KnownAttributes:
    """Read attribute values by their types."""
    declared = dict((scope.root("s") or RecordType(())).fields)
    values = {name: read_value(value, declared[name]) for name, value in attributes.values.items()}
    return KnownAttributes(values, attributes.on_behalf_of)


def find_right(
    definitions: DefinitionSet, user: str, gives: Callable[[kinds.Right], bool]
) -> str | None:
    """Return the name of a right that gives a user something; None where nothing does."""
    names = find_subjects(definitions, user)
    for name, right in sorted(definitions.of(kinds.Right).items()):
        if gives(right) and not names.isdisjoint(right.subjects):
            return name
    return None


def find_subjects(definitions: DefinitionSet, user: str) -> frozenset[str]:
    """Return what definitions may call a user by: its name, and its groups."""
    membership = Membership(definitions.of(kinds.Group).values())
    groups = (f"group:{name}" for name in membership.groups_of(user, None))
    return frozenset([f"user:{user}", *groups])


def list_claims(definitions: DefinitionSet) -> Iterator[Grant]:
    """Yield who may claim which purposes: by rights, and by the roles of users."""
    for name, right in sorted(definitions.of(kinds.Right).items()):
        for subject in right.subjects:
            for purpose in right.claim:
                yield Grant(subject, purpose, f"right {name}")
    roles = definitions.of(kinds.Role)
    if not any(role.claim for role in roles.values()):
        return
    graph = RoleGraph(roles)
    for name, user in sorted(definitions.of(kinds.User).items()):
        for role in sorted(graph.closure(user.roles)):
            for purpose in roles[role].claim:
                yield Grant(f"user:{name}", purpose, f"role {role}")
