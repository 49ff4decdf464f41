"""Checks of what decides on access, and of privacy controls, in the light of the whole set.

Rules that hold here:
- An attribute that a document gives or finds is declared, and of the declared type.
- An emergency policy names scenarios and situations of its own plan, and can apply.
- Separation of duty: no user, and no role, has two roles that exclude each other.
- A service honours categories that its control has, and no later than the control allows. A
  built-in one does what its control is for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.definitions.role_checks import check_subjects
from penstock.definitions.vocabularies import WrongValueError, read_value, scope_of
from penstock.errors import InvalidError, Problem, quote
from penstock.lang import BOOL, STRING, RecordType, Type, compile_expression, parse_type
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.kinds.controls import ERASURE, EXPORT
from penstock.policy.access.emergencies import SCENARIO_CASE, SITUATION_CASE, filter_scope
from penstock.policy.access.principals import BUILT_IN, RoleGraph

_OPERATIONS: Final[Mapping[str, str]] = {ERASURE: "delete", EXPORT: "export"}
"""What a built-in service does → the operation of a control that it can be declared for."""

Found = Iterator[tuple[Key, Problem]]


def check_emergency_policies(
    policies: Iterable[kinds.EmergencyPolicy], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield scenarios and situations that are not of the policy's plan."""
    for policy in policies:
        plan = definitions.get(Key("plan", policy.plan))
        if not isinstance(plan, kinds.Plan):
            continue  # reported as a dangling reference
        for at, name in enumerate(policy.scenarios):
            scenario = definitions.get(Key("scenario", name))
            if isinstance(scenario, kinds.Scenario) and scenario.plan != policy.plan:
                yield (
                    policy.key,
                    Problem(
                        f"scenarios[{at}]",
                        f"{name!r} follows the plan {scenario.plan!r}, not {policy.plan!r}",
                        "write one policy for each plan",
                    ),
                )
        levels = {situation.id: situation.level for situation in plan.situations}
        for at, situation in enumerate(policy.situations):
            if situation not in levels:
                place = f"situations[{at}]"
                what = f"the plan {policy.plan!r} has no situation {quote(situation)}"
                yield policy.key, Problem(place, what, _nearest(situation, levels))
        top = max(levels.values())
        if policy.minimum_level is not None and policy.minimum_level > top:
            yield (
                policy.key,
                Problem(
                    "minimum_level",
                    f"no situation of the plan {policy.plan!r} has level {policy.minimum_level}",
                    f"its levels end at {top}",
                ),
            )
        yield from _check_filters(policy, plan, definitions)
        yield from check_subjects([policy], definitions)


def _check_filters(
    policy: kinds.EmergencyPolicy, plan: kinds.Plan, definitions: Mapping[Key, Definition]
) -> Found:
    """Yield filters that choose nothing of the plan, whoever asks and whoever it is about."""
    scope = scope_of(
        [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)], problems=[]
    )
    names = [
        key.name
        for key, it in definitions.items()
        if isinstance(it, kinds.Scenario) and it.plan == plan.name
    ]
    scenarios = [{"scenario": name, "plan": plan.name} for name in sorted(names)]
    situations = [
        {**scenario, "situation": it.id, "level": it.level}
        for scenario in scenarios
        for it in plan.situations
    ]
    known = ", ".join(f"{it.id} (level {it.level})" for it in plan.situations)
    for field, text, record, cases, choice in (
        ("scenario_filter", policy.scenario_filter, SCENARIO_CASE, scenarios, ", ".join(names)),
        ("situation_filter", policy.situation_filter, SITUATION_CASE, situations, known),
    ):
        if text is None or not cases:
            continue
        try:
            expression = compile_expression(text, filter_scope(scope, record), BOOL)
        except InvalidError:
            continue  # reported with all expressions
        fixed = {f"c.{name}" for name, _ in record.fields} - {"c.subject"}
        if expression.references <= fixed and not any(
            expression.evaluate(s={}, c=case).holds for case in cases
        ):
            what = f"it holds for nothing of the plan {plan.name!r}"
            yield policy.key, Problem(field, what, f"there are {choice}")


def check_attributes(
    documents: Iterable[kinds.Attributes], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield values that are not declared or not of their type."""
    declared = _declared(definitions, "s")
    for document in documents:
        for name, value in document.values.items():
            place = f"values.{name}"
            if name in BUILT_IN:
                fix = f"remove it: s.{name} follows from who asks"
                yield document.key, Problem(place, f"{quote(name)} cannot be given", fix)
            elif name not in declared:
                yield document.key, _undeclared(place, name, "subject", declared)
            else:
                try:
                    read_value(value, declared[name])
                except WrongValueError as error:
                    where = ".".join(map(str, ("values", name, *error.place)))
                    fix = f"write a {declared[name]}"
                    yield document.key, Problem(where, f"{name!r} {error}", fix)


def check_objects(
    shapes: Iterable[kinds.ObjectShape], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield attributes that are not declared, and levels that are not text."""
    declared = _declared(definitions, "o")
    for shape in shapes:
        for name in shape.levels.values():
            if name not in declared:
                yield shape.key, _undeclared("topics", name, "object", declared)
            elif declared[name] != STRING:
                what = f"the level {name!r} is text, but declared {declared[name]}"
                yield shape.key, Problem("topics", what, "declare it string")
        for name in shape.payload:
            if name not in declared:
                yield shape.key, _undeclared(f"payload.{name}", name, "object", declared)


def check_vocabularies(
    vocabularies: Iterable[kinds.Vocabulary], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield attributes with a meaning of their own that are declared with another type."""
    del definitions
    for vocabulary in vocabularies:
        for name, kind in BUILT_IN.items():
            if name not in vocabulary.subject:
                continue
            given = vocabulary.subject[name]
            try:
                same = isinstance(given, str) and parse_type(given) == parse_type(kind)
            except InvalidError:
                continue  # reported with the vocabulary's own types
            if not same:
                what = f"{name!r} follows from who asks, and is {kind}"
                fix = f"declare it {kind}, or use another name"
                yield vocabulary.key, Problem(f"subject.{name}", what, fix)


def _declared(definitions: Mapping[Key, Definition], root: str) -> dict[str, Type]:
    vocabularies = [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)]
    return dict((scope_of(vocabularies, problems=[]).root(root) or RecordType(())).fields)


def _undeclared(place: str, name: str, field: str, declared: Iterable[str]) -> Problem:
    fix = _nearest(name, declared) or f"declare it under `{field}` of a vocabulary"
    return Problem(place, f"there is no attribute {quote(name)}", fix)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else None


def check_roles(touched: Iterable[kinds.Role], definitions: Mapping[Key, Definition]) -> Found:
    """Yield roles that exclude themselves, or that are made of roles which exclude each other."""
    graph = _role_graph(definitions)
    for role in touched:
        for index, other in enumerate(role.excludes):
            if other == role.name:
                problem = Problem(
                    f"excludes[{index}]", "a role cannot exclude itself", "remove it from the list"
                )
                yield role.key, problem
        for index, name in enumerate(role.includes):
            included = definitions.get(Key("role", name))
            needed = included.parameters if isinstance(included, kinds.Role) else ()
            strange = [it for it in needed if it not in role.parameters]
            if strange:
                problem = Problem(
                    f"includes[{index}]",
                    f"{quote(name)} has the parameter {quote(strange[0])}, and this role has not",
                    "give it this parameter, or include another role",
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


def check_users(touched: Iterable[kinds.User], definitions: Mapping[Key, Definition]) -> Found:
    """Yield users with roles that have parameters or exclude each other, or with others' names."""
    touched = list(touched)
    graph = _role_graph(definitions)
    yield from _check_certificates(touched, definitions)
    for user in touched:
        for index, name in enumerate(user.roles):
            role = graph.roles.get(name)
            if role is not None and role.parameters:
                problem = Problem(
                    f"roles[{index}]",
                    f"{quote(name)} has parameters, and nothing says which values are meant",
                    "write an activation-rule for it, and an appointment for the user",
                )
                yield user.key, problem
        for one, other in graph.conflicts(user.roles):
            way = ", ".join(sorted({*graph.ways(user.roles, one), *graph.ways(user.roles, other)}))
            problem = Problem(
                "roles",
                f"{quote(one)} and {quote(other)} exclude each other, and the user has both "
                f"(by {way})",
                "take one of them away",
            )
            yield user.key, problem


def _check_certificates(
    touched: Sequence[kinds.User], definitions: Mapping[Key, Definition]
) -> Found:
    asked = {user.certificate for user in touched if user.certificate is not None}
    if not asked:
        return  # nobody else has to be looked at: there may be many
    holders: dict[str, list[str]] = {}
    for it in definitions.values():
        if isinstance(it, kinds.User) and it.certificate is not None and it.certificate in asked:
            holders.setdefault(it.certificate, []).append(it.name)
    for user in touched:
        others = [it for it in holders.get(user.certificate or "", ()) if it != user.name]
        if others:
            problem = Problem(
                "certificate",
                f"the user {quote(min(others))} has the same certificate, and Kafka could not "
                "tell them apart",
                "give each a certificate of their own",
            )
            yield user.key, problem


def _role_graph(definitions: Mapping[Key, Definition]) -> RoleGraph:
    return RoleGraph(
        {key.name: it for key, it in definitions.items() if isinstance(it, kinds.Role)}
    )


def check_control_subscribers(
    subscribers: Iterable[kinds.ControlSubscriber], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield categories that the control does not have, times and operations that do not fit."""
    subscribers = list(subscribers)
    yield from check_subjects(subscribers, definitions)
    for subscriber in subscribers:
        control = definitions.get(Key(kinds.Control.kind, subscriber.control))
        if not isinstance(control, kinds.Control):
            continue  # a reference that leads nowhere is reported as such
        for number, category in enumerate(subscriber.categories):
            if category not in control.categories:
                known = ", ".join(control.categories) or "none"
                message = f"the control {quote(control.name)} has no category {quote(category)}"
                fix = f"its categories are {known}"
                yield subscriber.key, Problem(f"categories[{number}]", message, fix)
        wanted = _OPERATIONS.get(subscriber.uri)
        if wanted is not None and control.operation != wanted:
            # A choice that toggles must not erase, whatever it is called.
            message = f"the control {quote(control.name)} is no {wanted} of a person's data"
            fix = f"name a control with stateful: false and operation: {wanted}"
            yield subscriber.key, Problem("control", message, fix)
        longest = control.time_to_honor
        if subscriber.time_to_honor is not None and subscriber.time_to_honor > longest:
            message = f"{subscriber.time_to_honor} ms is longer than the control allows"
            yield subscriber.key, Problem("time_to_honor", message, f"at most {longest} ms")
