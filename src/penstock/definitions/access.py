"""Compiles definitions for the decision engine, and updates it with their changes.

Rules that hold here:
- A change compiles what it touches: one policy, the emergency policies of a plan, or, where
  a vocabulary changes, every condition.
- The outcome is the one that compiling the whole set afresh would have.
- Nobody has a `right` that is not given to them or to a group that they are in. A right of
  `anyone` or of a client is no right of a person.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.definitions.roles import RoleDefinitions, compile_appointment, make_program
from penstock.definitions.set import LOAD_KINDS, DefinitionSet
from penstock.definitions.vocabularies import read_attributes
from penstock.errors import InvalidError, Problem
from penstock.lang import BOOL, STRING, Expression, RecordType, Scope, compile_expression
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.kinds.roles import Privileges
from penstock.model.role_terms import ROLE_PREFIX, Constant, Path, parse_subject
from penstock.policy.access.emergencies import (
    SCENARIO_CASE,
    SITUATION_CASE,
    Emergency,
    ScenarioFilter,
    filter_scope,
)
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import Enforcement
from penstock.policy.access.principals import ANYONE, Action, Directory, Membership
from penstock.policy.access.rules import (
    BrokerTopics,
    MonitorGrant,
    Policy,
    Preference,
    RoleArguments,
)
from penstock.policy.purposes.rights import Grant
from penstock.policy.role_derivation import Circumstances, Relation, RoleLimitError, derive

RULE_KINDS: Final = kinds.kinds_of(kinds.Concern.RULES)
SETTING_KINDS: Final = kinds.kinds_of(kinds.Concern.SETTINGS)
ACCESS_KINDS: Final = kinds.kinds_of(kinds.Concern.ACCESS)
"""The kinds of definitions that decide on access."""


class AccessDefinitions:
    """A decision engine that follows a set of definitions."""

    def __init__(self, definitions: DefinitionSet | None = None) -> None:
        self.access = AccessEngine()
        self._roles = RoleDefinitions(self.access.roles)
        self._names: dict[Key, tuple[str, ...]] = {}
        if definitions is not None:
            self.take(definitions, definitions.definitions)

    def take(self, definitions: DefinitionSet, changed: Iterable[Key]) -> bool:
        """Follow a changed set; tell whether anything that decides on access changed."""
        changed = set(changed)
        roles = self._roles.take(definitions, changed)
        if roles:
            self.access.forget_principals()
        keys = {key for key in changed if key.kind in ACCESS_KINDS}
        if not keys:
            return roles
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
        if not keys:
            return
        # One definition may be several rules: those of before go first.
        gone = [name for key in keys for name in self._names.pop(key, ())]
        if gone:
            self.access.remove(*gone)
        scenarios = scenarios_by_plan(definitions)
        made: list[Policy | Preference] = []
        for key in keys:
            held = definitions.definitions.get(key)
            if held is not None:
                rules = compile_rules(held, definitions, scenarios)
                self._names[key] = tuple(it.name for it in rules)
                made += rules
        if made:
            self.access.put(*made)


def name_rule(key: Key) -> str:
    """Return what a rule is called in explanations."""
    return f"{key.kind} {key.name}"


def compile_rules(
    definition: Definition,
    definitions: DefinitionSet,
    scenarios: Mapping[str, tuple[ScenarioFilter, ...]],
) -> list[Policy | Preference]:
    """Compile a policy, an emergency policy, a preference or an authorisation rule."""
    scope = definitions.scope
    name = name_rule(definition.key)
    match definition:
        case kinds.Preference():
            condition = compile_expression(definition.when, scope, BOOL)
            readers = frozenset(definition.readers)
            return [Preference(name, definition.user, definition.filter, condition, readers)]
        case kinds.AuthorisationRule():
            subject, arguments = compile_subject(definition.subject, scope)
            condition = compile_expression(definition.when, scope, BOOL)
            given: list[tuple[str, Action, str]] = [
                *(("subscribe", "read", it) for it in dict.fromkeys(definition.subscribe)),
                *(("publish", "write", it) for it in dict.fromkeys(definition.publish)),
            ]
            return [
                Policy(
                    f"{name}: {word} {filter_}",
                    subject,
                    filter_,
                    action,
                    condition,
                    arguments=arguments,
                )
                for word, action, filter_ in given
            ]
        case kinds.Policy() | kinds.EmergencyPolicy():
            subject, arguments = compile_subject(definition.subject, scope)
            emergency = None
            if isinstance(definition, kinds.EmergencyPolicy):
                emergency = compile_emergency(definition, definitions, scenarios)
            condition = compile_expression(definition.when, scope, BOOL)
            return [
                Policy(
                    name,
                    subject,
                    definition.filter,
                    definition.allow,
                    condition,
                    emergency,
                    arguments,
                )
            ]
        case _:
            raise TypeError(f"{name} does not decide on access")


def compile_subject(text: str, scope: Scope) -> tuple[str, RoleArguments | None]:
    """Return the subject that a rule is found by, and what a message must say beside it."""
    term = parse_subject(text)
    if term is None or not term.paths:
        return text, None
    arguments = tuple(enumerate(term.arguments or ()))
    return f"{ROLE_PREFIX}{term.name}", RoleArguments(
        text,
        term.name,
        {at: it.value for at, it in arguments if isinstance(it, Constant)},
        {
            at: compile_expression(it.text, scope, STRING)
            for at, it in arguments
            if isinstance(it, Path)
        },
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


def list_privileges(
    definitions: DefinitionSet,
) -> Iterator[tuple[str, tuple[str, ...], Privileges]]:
    """Yield what gives privileges: the name in explanations, who has them, and the definition."""
    for name, right in sorted(definitions.of(kinds.Right).items()):
        yield f"right {name}", right.subjects, right
    for name, rule in sorted(definitions.of(kinds.AuthorisationRule).items()):
        yield f"authorisation-rule {name}", (rule.subject,), rule


def find_right(
    definitions: DefinitionSet, user: str, gives: Callable[[Privileges], bool]
) -> str | None:
    """Return the name of what gives a user something; None where nothing does."""
    names = find_subjects(definitions, user)
    for _, subjects, privileges in list_privileges(definitions):
        if gives(privileges) and not names.isdisjoint(subjects):
            return privileges.name
    return None


def find_subjects(definitions: DefinitionSet, user: str) -> frozenset[str]:
    """Return what definitions may call a user by now: its name, its groups and its roles.

    Who is blocked is nobody.
    """
    known = definitions.get(kinds.User, user)
    if known is not None and known.blocked:
        return frozenset()
    directory = make_directory(definitions, user)
    return frozenset(directory.resolve(user, None).subjects) - {ANYONE}


def make_directory(definitions: DefinitionSet, user: str | None = None) -> Directory:
    """Return who everybody is now, roles included; for one user where only they are asked about."""
    directory = Directory(definitions.scope.root("s"))
    directory.membership = Membership(definitions.of(kinds.Group).values())
    if not definitions.of(kinds.Role):
        return directory
    for name, attributes in definitions.of(kinds.Attributes).items():
        directory.set(name, read_attributes(attributes, definitions.scope))
    keys = list(definitions.definitions)
    if user is not None:
        # Their own appointments alone: each costs a look at its signature.
        groups = directory.membership.groups_of(user, None)
        holders = {f"user:{user}", *(f"group:{name}" for name in groups)}
        keys = [
            key
            for key, it in definitions.definitions.items()
            if not isinstance(it, kinds.Appointment) or it.holder in holders
        ]
    directory.roles.advance(int(time.time() * 1000))
    RoleDefinitions(directory.roles).take(definitions, keys)
    return directory


_MANY: Final = 100
"""Who has fewer appointments has no more roles than can be watched."""
_TRIED: Final = 20


def refuse_overload(definitions: DefinitionSet, touched: Iterable[Key]) -> None:
    """Refuse a change by which somebody would have more roles than can be watched.

    They would have none then, and each of their sessions would take long to find that out: a
    gateway would stand still meanwhile. Those with most appointments are tried.
    """
    keys = sorted(key for key in touched if key.kind in LOAD_KINDS)
    if not keys or not definitions.of(kinds.ActivationRule):
        return
    appointments = definitions.of(kinds.Appointment)
    held: dict[str, list[kinds.Appointment]] = {}
    for it in appointments.values():
        held.setdefault(it.holder, []).append(it)
    concerned = {appointments[key.name].holder for key in keys if key.kind == "appointment"}
    if any(key.kind != "appointment" for key in keys):
        concerned = set(held)
    directory = Directory(definitions.scope.root("s"))
    directory.membership = Membership(definitions.of(kinds.Group).values())
    for name, attributes in definitions.of(kinds.Attributes).items():
        directory.set(name, read_attributes(attributes, definitions.scope))
    tried: dict[frozenset[str], str] = {}
    for user in _list_people(definitions):
        groups = directory.membership.groups_of(user, None)
        holders = {f"user:{user}", *(f"group:{it}" for it in groups)} & held.keys()
        if holders & concerned:
            tried.setdefault(frozenset(holders), user)
    counted = sorted(((sum(len(held[it]) for it in some), user) for some, user in tried.items()))
    program = make_program(definitions)
    for count, user in counted[-_TRIED:]:
        if count <= _MANY:
            continue
        who = directory.resolve(user, None)
        holders = {f"user:{user}", *(f"group:{it}" for it in who.groups)}
        facts: dict[str, list[tuple[str, ...]]] = {}
        for it in (it for holder in holders for it in held.get(holder, ())):
            name, values = compile_appointment(it).credential
            facts.setdefault(name, []).append(values)
        known = Circumstances(
            {name: Relation(values) for name, values in facts.items()},
            domains=program.domains_of(["anyone", *holders]),
            s=who.attributes,
            e={"time": datetime.now(UTC)},
        )
        try:
            derive(program, known)
        except RoleLimitError as error:
            what = f"who has {count} appointments would have no roles: {error.message}"
            fix = error.fix or "let conditions of activation rules share variables"
            raise InvalidError("definitions", [Problem(str(keys[0]), what, fix)]) from None


def _list_people(definitions: DefinitionSet) -> list[str]:
    """Return the users who have appointments, and one of each group that has some."""
    named = [it.holder for it in definitions.of(kinds.Appointment).values()]
    for group in definitions.of(kinds.Group).values():
        named += [it for it in group.members if it.startswith("user:")]
    return sorted({it.removeprefix("user:") for it in named if it.startswith("user:")})


def list_claims(definitions: DefinitionSet) -> Iterator[Grant]:
    """Yield who may claim which purposes: by rights, and by roles."""
    for rule, subjects, privileges in list_privileges(definitions):
        for subject in subjects:
            for purpose in privileges.claim:
                yield Grant(subject, purpose, rule)
    for name, role in sorted(definitions.of(kinds.Role).items()):
        for purpose in role.claim:
            yield Grant(f"{ROLE_PREFIX}{name}", purpose, f"role {name}")


def make_broker_topics(definitions: DefinitionSet, *, open_mode: bool) -> BrokerTopics:
    """Return who may read and write the broker's own topics, by rights."""
    given = list(list_privileges(definitions))
    return BrokerTopics(
        (
            MonitorGrant(subject, filter_, rule)
            for rule, subjects, privileges in given
            for subject in subjects
            for filter_ in privileges.monitor
        ),
        (
            (subject, rule)
            for rule, subjects, privileges in given
            if privileges.administer
            for subject in subjects
        ),
        open_mode=open_mode,
    )
