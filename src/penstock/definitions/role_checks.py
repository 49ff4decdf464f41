"""Checks of roles, their rules, appointments and the subjects that name them.

Rules that hold here:
- A role has as many arguments wherever it is named as it has parameters, or none are written.
- Every variable of the role that a rule activates gets its value from a condition or `bind`.
- No role needs itself, by whatever rules: nobody could tell what would end it.
- A rule uses roles of its own domain, of those above it, and of no domain.
- Messages name roles, variables and places; never a value, which may be personal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.definitions.vocabularies import scope_of
from penstock.errors import InvalidError, Problem, quote
from penstock.lang import BOOL, STRING, RecordType, Scope, Type, compile_expression
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.role_terms import Path, RoleTerm, parse_subject, parse_term

Found = Iterator[tuple[Key, Problem]]
Definitions = Mapping[Key, Definition]
_EVERYBODYS: Final = {"s.uid", "s.cid"}
"""Attributes that whoever logs in has."""


def constraint_scope(scope: Scope, variables: Iterable[str]) -> Scope:
    """Return what constraints of an activation rule see: s, e, and the variables as r."""
    return Scope(
        (
            ("s", scope.root("s") or RecordType(())),
            ("e", scope.root("e") or RecordType(())),
            ("r", RecordType(tuple((name, STRING) for name in sorted(set(variables))))),
        )
    )


def binding_scope(scope: Scope) -> Scope:
    """Return what bindings of an activation rule see: s."""
    return Scope((("s", scope.root("s") or RecordType(())),))


def list_variables(rule: kinds.ActivationRule) -> list[str]:
    """Return the variables that conditions and bindings of a rule give a value."""
    found = [*rule.bind]
    for condition in rule.requires:
        text = condition.role or condition.appointment
        if text is not None:
            found += parse_term(text).variables
    return list(dict.fromkeys(found))


def list_subjects(definition: Definition) -> Iterator[tuple[str, str]]:
    """Yield the subjects that a definition names, each with its place."""
    subject = getattr(definition, "subject", None)
    if isinstance(subject, str):
        yield ("role" if isinstance(definition, kinds.AuthorisationRule) else "subject"), subject
    for field in ("subjects", "readers", "exempt"):
        for at, text in enumerate(getattr(definition, field, ())):
            yield f"{field}[{at}]", text


def check_activation_rules(
    touched: Iterable[kinds.ActivationRule], definitions: Definitions
) -> Found:
    """Yield what is wrong with activation rules."""
    scope = scope_of(
        [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)], problems=[]
    )
    cycles = _find_cycles(definitions)
    for rule in touched:
        for problem in _check_rule(rule, definitions, scope):
            yield rule.key, problem
        head = parse_term(rule.role).name
        if head in cycles:
            what = f"the role needs itself: {' → '.join(cycles[head])}"
            yield rule.key, Problem("requires", what, "remove one of these steps")


def _check_rule(
    rule: kinds.ActivationRule, definitions: Definitions, scope: Scope
) -> Iterator[Problem]:
    head = parse_term(rule.role)
    bound = list_variables(rule)
    yield from _check_term("role", head, definitions)
    yield from _check_domain("role", head, rule.domain, definitions)
    for at, argument in enumerate(head.arguments or ()):
        if isinstance(argument, Path):
            yield _no_path("role", argument)
        elif getattr(argument, "name", None) == "_":
            what = f"argument {at + 1} of {quote(head.name)} is _, and a role has values"
            yield Problem("role", what, "name a variable that a condition gives a value")
    for name in head.variables:
        if name not in bound:
            yield Problem(
                "role",
                f"nothing gives {quote(name)} a value",
                f"name it in a condition of `requires`, or write `bind: {{{name}: s.uid}}`",
            )
    if not rule.requires and _means_everybody(rule, definitions, scope):
        what = "everybody who logs in would have the role"
        fix = 'name a condition; `- when: "true"` says that it is meant'
        yield Problem("requires", what, fix)
    for name, text in rule.bind.items():
        yield from _check_expression(f"bind.{name}", text, binding_scope(scope), STRING)
    yield from _check_conditions(rule, definitions, scope)


def _means_everybody(rule: kinds.ActivationRule, definitions: Definitions, scope: Scope) -> bool:
    """Tell whether a rule without conditions holds for whoever logs in."""
    for text in rule.bind.values():
        try:
            read = compile_expression(text, binding_scope(scope), STRING).references
        except InvalidError:
            return False  # told already
        if not set(read) <= _EVERYBODYS:
            return False
    if rule.domain is None:
        return True
    domains = [it for it in definitions.values() if isinstance(it, kinds.Domain)]
    waiting, found = [rule.domain], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [it.name for it in domains if it.parent == name]
    return any("anyone" in it.members for it in domains if it.name in found)


def _check_conditions(
    rule: kinds.ActivationRule, definitions: Definitions, scope: Scope
) -> Iterator[Problem]:
    bound = list_variables(rule)
    for at, condition in enumerate(rule.requires):
        place = f"requires[{at}]"
        if condition.when is not None:
            seen = constraint_scope(scope, bound)
            yield from _check_expression(f"{place}.when", condition.when, seen, BOOL)
            continue
        field = "role" if condition.role is not None else "appointment"
        term = parse_term(condition.role or condition.appointment or "")
        for argument in term.arguments or ():
            if isinstance(argument, Path):
                yield _no_path(f"{place}.{field}", argument)
        if field == "role":
            yield from _check_term(f"{place}.role", term, definitions)
            yield from _check_domain(f"{place}.role", term, rule.domain, definitions)


def _no_path(place: str, path: Path) -> Problem:
    return Problem(
        place,
        f"{quote(path.text)} is an attribute, and roles are activated without a message",
        "name a variable, and bind it: `bind: {name: s.attribute}`",
    )


def _check_expression(place: str, text: str, scope: Scope, result: Type) -> Iterator[Problem]:
    try:
        made = compile_expression(text, scope, result)
    except InvalidError as error:
        for item in error.problems:
            where = f"{place}, {item.place}" if item.place else place
            yield Problem(where, item.message, item.fix)
        return
    if "s.activeRoles" in made.references:
        what = "a role cannot depend on s.activeRoles, which follows from all rules"
        yield Problem(place, what, "name the role under `requires`")


def _check_term(place: str, term: RoleTerm, definitions: Definitions) -> Iterator[Problem]:
    """Yield that a role is named with too many or too few arguments."""
    role = definitions.get(Key("role", term.name))
    if not isinstance(role, kinds.Role):
        return  # reported as a dangling reference
    given = len(term.arguments or ())
    if given != len(role.parameters):
        wanted = f"{term.name}({', '.join(role.parameters)})" if role.parameters else term.name
        what = f"the role {term.name!r} has {len(role.parameters)} parameters, not {given}"
        yield Problem(place, what, f"write {wanted}")


def _check_domain(
    place: str, term: RoleTerm, domain: str | None, definitions: Definitions
) -> Iterator[Problem]:
    role = definitions.get(Key("role", term.name))
    owner = role.domain if isinstance(role, kinds.Role) else None
    if owner is None:
        return
    at: str | None = domain
    seen: set[str] = set()
    while at is not None and at not in seen:
        if at == owner:
            return
        seen.add(at)
        held = definitions.get(Key("domain", at))
        at = held.parent if isinstance(held, kinds.Domain) else None
    what = f"the role {term.name!r} is of the domain {owner!r}, which this rule is not below"
    yield Problem(place, what, f"write `domain: {owner}`, or name a domain below it")


def _find_cycles(definitions: Definitions) -> dict[str, list[str]]:
    """Return the roles that need themselves, each with the way back."""
    needs: dict[str, set[str]] = {}
    for it in definitions.values():
        if isinstance(it, kinds.ActivationRule):
            head = parse_term(it.role).name
            needs.setdefault(head, set()).update(
                parse_term(condition.role).name
                for condition in it.requires
                if condition.role is not None
            )
    found: dict[str, list[str]] = {}
    done: set[str] = set()
    for start in sorted(needs):
        way: list[str] = []
        stack = [iter([start])]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                if way:
                    done.add(way.pop())
            elif step in way:
                cycle = way[way.index(step) :]
                for name in cycle:
                    found.setdefault(name, [*cycle, step])
            elif step not in done:
                way.append(step)
                stack.append(iter(sorted(needs.get(step, ()))))
    return found


def check_appointments(touched: Iterable[kinds.Appointment], definitions: Definitions) -> Found:
    """Yield appointments that no condition of their name could ever match."""
    wanted: dict[str, tuple[int, str]] = {}
    for it in definitions.values():
        if isinstance(it, kinds.ActivationRule):
            for condition in it.requires:
                if condition.appointment is not None:
                    term = parse_term(condition.appointment)
                    wanted.setdefault(term.name, (len(term.arguments or ()), it.name))
    for appointment in touched:
        term = parse_term(appointment.credential)
        given = len(term.arguments or ())
        expected, rule = wanted.get(term.name, (given, ""))
        if given != expected:
            what = f"it has {given} values, and the activation-rule {rule!r} asks for {expected}"
            yield appointment.key, Problem("credential", what, f"give {expected} values")


def check_domain_rules(
    touched: Iterable[kinds.AuthorisationRule], definitions: Definitions
) -> Found:
    """Yield authorisation rules that name roles of domains they are not below."""
    for rule in touched:
        term = parse_term(rule.role)
        for problem in _check_domain("role", term, rule.domain, definitions):
            yield rule.key, problem
        yield from check_subjects([rule], definitions)


def check_subjects(touched: Iterable[Definition], definitions: Definitions) -> Found:
    """Yield subjects that name a role with too many or too few arguments."""
    vocabularies = [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)]
    scope: Scope | None = None
    for definition in touched:
        for place, text in list_subjects(definition):
            term = parse_subject(text)
            if term is None:
                continue
            if term.arguments is not None:
                for problem in _check_term(place, term, definitions):
                    yield definition.key, problem
            for path in term.paths:
                scope = scope or scope_of(vocabularies, problems=[])
                for problem in _check_expression(place, path, scope, STRING):
                    yield definition.key, problem
