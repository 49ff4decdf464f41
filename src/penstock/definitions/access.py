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

from penstock.definitions.checks.vocabularies import read_attributes
from penstock.definitions.set import DefinitionSet
from penstock.lang import BOOL, STRING, Expression, RecordType, Scope, compile_expression
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.policy.access.emergencies import (
    SCENARIO_CASE,
    SITUATION_CASE,
    Emergency,
    ScenarioFilter,
    filter_scope,
)
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import Enforcement
from penstock.policy.access.principals import Membership, RoleGraph
from penstock.policy.access.rules import BrokerTopics, MonitorGrant, Policy, Preference
from penstock.policy.purposes.rights import Grant

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
                known = read_attributes(held, definitions.scope) if held else None
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
    definition: Definition,
    definitions: DefinitionSet,
    scenarios: Mapping[str, tuple[ScenarioFilter, ...]],
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
    scenarios: Mapping[str, tuple[ScenarioFilter, ...]],
) -> Emergency:
    """Compile when an emergency policy applies."""
    situations: frozenset[str] | None = frozenset(policy.situations) or None
    plan = definitions.get(kinds.Plan, policy.plan)
    levels = {it.id: it.level for it in plan.situations} if plan is not None else {}
    if policy.minimum_level is not None:
        lowest = policy.minimum_level
        situations = frozenset(it for it, level in levels.items() if level >= lowest)
    scope = definitions.scope
    return Emergency(
        tuple(
            it
            for it in scenarios.get(policy.plan, ())
            if not policy.scenarios or it.name in policy.scenarios
        ),
        situations,
        compile_expression(policy.about, scope, STRING) if policy.about else None,
        policy.exclusive,
        levels,
        _compile_filter(policy.scenario_filter, scope, SCENARIO_CASE),
        _compile_filter(policy.situation_filter, scope, SITUATION_CASE),
    )


def _compile_filter(text: str | None, scope: Scope, case: RecordType) -> Expression | None:
    return None if text is None else compile_expression(text, filter_scope(scope, case), BOOL)


def scenarios_by_plan(definitions: DefinitionSet) -> dict[str, tuple[ScenarioFilter, ...]]:
    """Return the scenarios that follow each plan, in the order of their names."""
    found: dict[str, list[ScenarioFilter]] = {}
    for _, it in sorted(definitions.of(kinds.Scenario).items()):
        involves = _compile_filter(it.subject_filter, definitions.scope, SCENARIO_CASE)
        found.setdefault(it.plan, []).append(ScenarioFilter(it.name, it.plan, involves))
    return {plan: tuple(filters) for plan, filters in found.items()}


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
                compile_expression(item.about, definitions.scope, STRING) if item.about else None,
                exclusive=True,
            )
            for item in enforcement.exclusive
        ),
    )


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
    """Return what definitions may call a user by: its name, and its groups.

    Who is blocked is nobody.
    """
    known = definitions.get(kinds.User, user)
    if known is not None and known.blocked:
        return frozenset()
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


def make_broker_topics(definitions: DefinitionSet, *, open_mode: bool) -> BrokerTopics:
    """Return who may read and write the broker's own topics, by rights."""
    rights = [(f"right {name}", it) for name, it in definitions.of(kinds.Right).items()]
    return BrokerTopics(
        (
            MonitorGrant(subject, filter_, rule)
            for rule, right in rights
            for subject in right.subjects
            for filter_ in right.monitor
        ),
        ((it, rule) for rule, right in rights if right.administer for it in right.subjects),
        open_mode=open_mode,
    )
