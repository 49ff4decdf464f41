"""A set of definitions that is valid as a whole, and the checks that look at other definitions.

Rules that hold here:
- A set exists only if every document has a known kind and the right shape, every
  reference leads somewhere, no acyclic reference leads back to its start, every
  expression has the right type, and the checks of each kind hold.
- A changed set checks what the change can break and reuses the rest, so that one change
  in a large set stays cheap: the definitions that changed, and those that look at a kind that
  changed. The outcome is the one a fresh check would have.
- A check tells all that is wrong with definitions of a kind in the light of the whole set.
- A check is loaded when a set holds its kind: who has no views loads no masks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from penstock.definitions.document_checks import (
    Locate,
    ReferenceIndex,
    locate_by_key,
    validate_document,
)
from penstock.definitions.vocabularies import check_expressions, scope_of
from penstock.errors import InvalidError, Problem
from penstock.lang.types import Scope
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds import Appointment, Transformation, View, Vocabulary

Kind = TypeVar("Kind", bound=Definition)


@dataclass(frozen=True, slots=True)
class KindCheck:
    """A check of one kind, and the kinds that it looks at.

    A place is written `MODULE:FUNCTION`, below this package.
    """

    place: str
    looks_at: frozenset[str] = frozenset()

    def run(
        self, touched: Iterable[Definition], definitions: Mapping[Key, Definition]
    ) -> Iterator[tuple[Key, Problem]]:
        """Yield what is wrong with the definitions of the kind that were touched."""
        check = load_check(self.place)
        yield from check(touched, definitions)


def load_check(place: str) -> Any:
    """Return the function at a place."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f"penstock.definitions.{module}"), function)


LOAD_KINDS: Final = frozenset({"activation-rule", "appointment", "domain", "group", "role"})
"""Kinds by which somebody may come to have more roles than can be watched."""

_SUBJECTS: Final = KindCheck("role_checks:check_subjects", frozenset({"role", "vocabulary"}))

CHECKS: Final[Mapping[str, KindCheck]] = {
    "activation-rule": KindCheck(
        "role_checks:check_activation_rules",
        frozenset({"role", "activation-rule", "domain", "vocabulary"}),
    ),
    "appointment": KindCheck("role_checks:check_appointments", frozenset({"activation-rule"})),
    "authorisation-rule": KindCheck(
        "role_checks:check_domain_rules", frozenset({"role", "domain", "vocabulary"})
    ),
    "control-publisher": _SUBJECTS,
    "policy": _SUBJECTS,
    "preference": _SUBJECTS,
    "right": _SUBJECTS,
    "action": KindCheck("events.program:check_actions", frozenset({"event", "vocabulary"})),
    "attributes": KindCheck("access_checks:check_attributes", frozenset({"vocabulary"})),
    "control-subscriber": KindCheck(
        "access_checks:check_control_subscribers", frozenset({"control", "role", "vocabulary"})
    ),
    "emergency-policy": KindCheck(
        "access_checks:check_emergency_policies",
        frozenset({"plan", "scenario", "vocabulary", "role"}),
    ),
    "event": KindCheck(
        "events.program:check_events", frozenset({"event", "vocabulary", "plan", "action"})
    ),
    "object": KindCheck("access_checks:check_objects", frozenset({"vocabulary"})),
    "vocabulary": KindCheck("access_checks:check_vocabularies"),
    "hierarchy": KindCheck("view_checks:check_hierarchies"),
    "plan": KindCheck("events.program:check_plans", frozenset({"event", "action", "vocabulary"})),
    "role": KindCheck("access_checks:check_roles", frozenset({"role"})),
    "scenario": KindCheck(
        "events.program:check_scenarios", frozenset({"event", "plan", "vocabulary"})
    ),
    "restriction": KindCheck(
        "interaction_checks:check_restrictions",
        frozenset({"vocabulary", "table", "role", "plan", "scenario"}),
    ),
    "table": KindCheck("interaction_checks:check_tables"),
    "transformation": KindCheck(
        "interaction_checks:check_transformations",
        frozenset(
            {
                "hierarchy",
                "plan",
                "role",
                "scenario",
                "stream",
                "table",
                "transformation",
                "vocabulary",
            }
        ),
    ),
    "stream": KindCheck("document_checks:check_streams", frozenset({"event-type"})),
    "event-type": KindCheck("trust_checks:check_event_types", frozenset({"event-type"})),
    "capability": KindCheck("trust_checks:check_capabilities"),
    "revocation-list": KindCheck("trust_checks:check_revocation_lists"),
    "user": KindCheck("access_checks:check_users", frozenset({"role"})),
    "view": KindCheck(
        "view_checks:check_views",
        frozenset({"stream", "hierarchy", "view", "role", "transformation"}),
    ),
}


def check_kinds(
    definitions: Mapping[Key, Definition],
    changed: Mapping[Key, Definition | None],
    locate: Locate,
) -> list[Problem]:
    """Return what is wrong with the definitions that a change can have broken."""
    kinds = {key.kind for key in changed}
    again = {kind for kind, check in CHECKS.items() if check.looks_at & kinds}
    problems = []
    for kind, check in CHECKS.items():
        touched = [
            definition
            for key, definition in definitions.items()
            if key.kind == kind and (kind in again or key in changed)
        ]
        if touched:
            for key, problem in check.run(touched, definitions):
                place = _place(locate, key, problem.place)
                problems.append(Problem(place, problem.message, problem.fix))
    return problems


def check_misshapen(
    documents: Iterable[Document], definitions: Mapping[Key, Definition], locate: Locate
) -> Iterator[Problem]:
    """Yield what else is wrong with documents that have not the shape of their kind."""
    for document in documents:
        if document.kind == View.kind:
            check_rest = load_check("view_checks:check_rest")
            for problem in check_rest(document, definitions):
                place = _place(locate, document.key, problem.place)
                yield Problem(place, problem.message, problem.fix)


def _place(locate: Locate, key: Key, way: str) -> str:
    """Say where a way such as `anonymizers[0].keys[1]` stands."""
    steps = [step for step in way.replace("[", ".").replace("]", "").split(".") if step]
    return locate(key, tuple(int(step) if step.isdigit() else step for step in steps))


Trust = Callable[[Appointment], bool]


def trust_nothing(appointment: Appointment) -> bool:
    """Believe no appointment: no key is known."""
    del appointment
    return False


class DefinitionSet:
    """All definitions of one moment, checked."""

    def __init__(
        self,
        definitions: Mapping[Key, Definition],
        references: ReferenceIndex,
        scope: Scope,
        trusts: Trust,
    ) -> None:
        self.definitions = MappingProxyType(definitions)
        self.scope = scope
        self.trusts = trusts
        """Tells whether an appointment is signed with a key that is believed."""
        self._references = references

    @classmethod
    def empty(cls, trusts: Trust = trust_nothing) -> DefinitionSet:
        """Return the set without definitions."""
        return cls({}, ReferenceIndex(), scope_of([]), trusts)

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        locate: Locate = locate_by_key,
        *,
        trusts: Trust = trust_nothing,
    ) -> DefinitionSet:
        """Check documents as a whole; raise `InvalidError` with all their problems."""
        return cls.empty(trusts).change(documents, locate=locate)

    def change(
        self,
        put: Iterable[Document] = (),
        delete: Iterable[Key] = (),
        *,
        locate: Locate = locate_by_key,
        problems: Iterable[Problem] = (),
    ) -> DefinitionSet:
        """Return the set with these documents put and these keys deleted, if it is valid.

        `problems` that were found before, such as in reading, are reported with the others.
        """
        found = list(problems)
        changed: dict[Key, Definition | None] = dict.fromkeys(delete)
        misshapen: dict[Key, Document] = {}
        for document in put:
            made = validate_document(document, locate, found)
            if made is None:
                misshapen[document.key] = document
            else:
                changed[document.key] = made
        definitions = dict(self.definitions)
        for key, definition in changed.items():
            if definition is None:
                definitions.pop(key, None)
            else:
                definitions[key] = definition
        references = self._references.change(changed)
        # A reference to a misshapen definition is not dangling: one complaint is enough.
        found += references.problems(definitions.keys() | misshapen.keys(), changed, locate)
        scope = self.scope
        if not any(key.kind == Vocabulary.kind for key in misshapen):
            if any(key.kind == Vocabulary.kind for key in changed):
                vocabularies = [it for it in definitions.values() if isinstance(it, Vocabulary)]
                scope = scope_of(vocabularies, locate, found)
            to_check = changed if scope is self.scope else definitions
            found += check_expressions(to_check, scope, locate)
        found += check_kinds(definitions, changed, locate)
        if misshapen:
            found += check_misshapen(misshapen.values(), definitions, locate)
        if found:
            raise InvalidError("definitions", found)
        return DefinitionSet(definitions, references, scope, self.trusts)

    def of(self, kind: type[Kind]) -> dict[str, Kind]:
        """Return the definitions of one kind, by name, in name order."""
        return {
            key.name: self._complete(definition)
            for key, definition in sorted(self.definitions.items())
            if isinstance(definition, kind)
        }

    def get(self, kind: type[Kind], name: str) -> Kind | None:
        """Return one definition, if there is such a one."""
        found = self.definitions.get(Key(kind.kind, name))
        return self._complete(found) if isinstance(found, kind) else None

    def used_by(self, key: Key) -> list[Key]:
        """Return the other definitions that name one, sorted."""
        return sorted(self._references.used_by(key) - {key})

    def _complete(self, definition: Kind) -> Kind:
        """Return a definition with what it takes from others."""
        if isinstance(definition, View) and definition.transformation is not None:
            held = self.definitions[Key(Transformation.kind, definition.transformation)]
            if isinstance(held, Transformation):
                return cast("Kind", definition.behind(held))
        return definition
