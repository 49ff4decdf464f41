"""Compiles roles, activation rules, appointments and domains for the engine of roles.

Rules that hold here:
- A rule that has not changed stays the same object: what was activated by it stays active.
- An appointment that the set does not trust is left out, as if there were none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.definitions.role_checks import (
    binding_scope,
    constraint_scope,
    list_subjects,
    list_variables,
)
from penstock.definitions.set import DefinitionSet
from penstock.lang import BOOL, STRING, Scope, compile_expression
from penstock.model import kinds
from penstock.model.document import Key
from penstock.model.kinds.roles import read_moment
from penstock.model.role_terms import Constant, RoleTerm, parse_subject, parse_term
from penstock.policy.role_engine import Appointment, RoleEngine
from penstock.policy.role_program import (
    APPOINTMENT,
    ROLE,
    ActivationRule,
    Atom,
    Constraint,
    Program,
    RoleShape,
)

PROGRAM_KINDS: Final = frozenset({"role", "activation-rule", "domain", "vocabulary"})
"""Kinds whose change makes another program."""
PEOPLE_KINDS: Final = frozenset({"group", "attributes"})
"""Kinds that say who everybody is."""
SUBJECT_KINDS: Final = frozenset(
    {
        "right",
        "policy",
        "emergency-policy",
        "authorisation-rule",
        "preference",
        "control-publisher",
        "control-subscriber",
        "restriction",
        "transformation",
    }
)
"""Kinds that name roles as subjects."""
_KINDS: Final = PROGRAM_KINDS | PEOPLE_KINDS | SUBJECT_KINDS | {"user", "appointment"}


def compile_activation(rule: kinds.ActivationRule, scope: Scope) -> ActivationRule:
    """Compile an activation rule."""
    head = parse_term(rule.role)
    atoms, constraints = [], []
    seen = constraint_scope(scope, list_variables(rule))
    for condition in rule.requires:
        text = condition.role or condition.appointment
        if text is not None:
            term = parse_term(text)
            key = (ROLE if condition.role is not None else APPOINTMENT, term.name)
            atoms.append(Atom(key, term.arguments or (), condition.membership))
        else:
            made = compile_expression(condition.when or "false", seen, BOOL)
            timed = looks_at_time(made.references)
            common = all(path.partition(".")[0] == "e" for path in made.references)
            constraints.append(Constraint(made.function, condition.membership, timed, common))
    return ActivationRule(
        rule.name,
        head.name,
        head.arguments or (),
        tuple(atoms),
        tuple(constraints),
        tuple(
            (name, compile_expression(text, binding_scope(scope), STRING).function)
            for name, text in rule.bind.items()
        ),
        rule.domain,
    )


def looks_at_time(references: Iterable[str]) -> bool:
    """Tell whether the passing of time alone may change what an expression says."""
    return any(path in {"e", "e.time"} or path.startswith("e.time.") for path in references)


class RoleDefinitions:
    """An engine of roles that follows a set of definitions."""

    def __init__(self, engine: RoleEngine) -> None:
        self._engine = engine
        self._compiled: dict[str, tuple[kinds.ActivationRule, Scope, ActivationRule]] = {}

    def take(self, definitions: DefinitionSet, keys: Iterable[Key]) -> bool:
        """Follow a changed set; tell whether somebody may have other roles, or mean more."""
        engine = self._engine
        changed = list(keys)
        touched = {key.kind for key in changed}
        if touched & PROGRAM_KINDS:
            engine.replace(self._compile(definitions))
        elif any(key.kind in PEOPLE_KINDS and not _is_of_user(key) for key in changed):
            engine.invalidate()
        if touched & SUBJECT_KINDS:
            engine.watch(list_patterns(definitions))
        for key in changed:
            if _is_of_user(key):
                engine.touch(key.name)
            elif key.kind == "user":
                user = definitions.get(kinds.User, key.name)
                engine.assign(key.name, user.roles if user is not None else ())
            elif key.kind == "appointment":
                held = definitions.get(kinds.Appointment, key.name)
                if held is not None and definitions.trusts(held):
                    engine.put(compile_appointment(held))
                else:
                    engine.remove(key.name)
        return bool(touched & _KINDS)

    def _compile(self, definitions: DefinitionSet) -> Program:
        scope = definitions.scope
        compiled = {}
        for name, rule in definitions.of(kinds.ActivationRule).items():
            known = self._compiled.get(name)
            if known is None or known[0] != rule or known[1] != scope:
                known = (rule, scope, compile_activation(rule, scope))
            compiled[name] = known
        self._compiled = compiled
        return make_program(definitions, [made for _, _, made in compiled.values()])


def make_program(
    definitions: DefinitionSet, rules: Iterable[ActivationRule] | None = None
) -> Program:
    """Return all that leads to roles; `rules` are those that are compiled already."""
    if rules is None:
        found = definitions.of(kinds.ActivationRule).values()
        rules = [compile_activation(it, definitions.scope) for it in found]
    domains = definitions.of(kinds.Domain)
    members: dict[str, set[str]] = {}
    for name, domain in domains.items():
        for subject in domain.members:
            members.setdefault(subject, set()).add(name)
    return Program(
        {
            name: RoleShape(role.parameters, role.includes, role.excludes)
            for name, role in definitions.of(kinds.Role).items()
        },
        tuple(rules),
        {name: domain.parent for name, domain in domains.items()},
        {subject: frozenset(names) for subject, names in members.items()},
    )


def _is_of_user(key: Key) -> bool:
    """Tell whether a definition says what is known of one user."""
    return key.kind == "attributes" and key.name.startswith("user:")


def compile_appointment(held: kinds.Appointment) -> Appointment:
    """Compile an appointment."""
    term = parse_term(held.credential)
    values = tuple(it.value for it in term.arguments or () if isinstance(it, Constant))
    return Appointment(
        held.name,
        (term.name, values),
        held.holder,
        None if held.valid_from is None else read_moment(held.valid_from),
        None if held.valid_until is None else read_moment(held.valid_until),
    )


def list_patterns(definitions: DefinitionSet) -> list[tuple[str, RoleTerm]]:
    """Return the subjects by which definitions mean instances of roles, with constants alone."""
    found: dict[str, RoleTerm] = {}
    for key, definition in definitions.definitions.items():
        if key.kind in SUBJECT_KINDS:
            for _, text in list_subjects(definition):
                term = parse_subject(text)
                if term is not None and term.arguments is not None and term.is_plain:
                    found[text] = term
    return sorted(found.items())
