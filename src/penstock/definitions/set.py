"""A set of definitions that is valid as a whole, and the checks that look at other definitions.

Rules that hold here:
- A set exists only if every document has a known kind and the right shape, every
  reference leads somewhere, no acyclic reference leads back to its start, every
  expression has the right type, and the checks of each kind hold.
- A changed set checks what the change can break and reuses the rest, so that one change
  in a large set stays cheap: the definitions that changed, and those that look at a kind that
  changed. The outcome is the one a fresh check would have.
- A check tells all that is wrong with definitions of a kind in the light of the whole set.
- Two topics never have one name, whether of a stream or of a view.
- A view that makes groups bears no risk that it does not acknowledge; see `grouping_risks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from penstock.definitions.checks import Locate, locate_by_key
from penstock.definitions.checks.access import (
    check_attributes,
    check_emergency_policies,
    check_objects,
    check_roles,
    check_users,
    check_vocabularies,
)
from penstock.definitions.checks.controls import check_control_subscribers
from penstock.definitions.checks.references import ReferenceIndex
from penstock.definitions.checks.validation import validate_document
from penstock.definitions.checks.vocabularies import check_expressions, scope_of
from penstock.definitions.events.program import (
    check_actions,
    check_events,
    check_plans,
    check_scenarios,
)
from penstock.definitions.grouping_risks import check_grouping_risks
from penstock.definitions.views import Definitions, ViewPlan, find_plan, hierarchies_of, read_steps
from penstock.errors import InvalidError, Problem, quote
from penstock.lang.types import Scope
from penstock.masks import Hierarchy
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds import View, Vocabulary

Finding = tuple[Key, Problem]
Kind = TypeVar("Kind", bound=Definition)


def check_views(views: Iterable[kinds.View], definitions: Definitions) -> Iterator[Finding]:
    """Yield what is wrong with views; places are within the view."""
    hierarchies = hierarchies_of(definitions)
    topics: dict[str, list[Key]] = {}
    for other in definitions.values():
        if isinstance(other, kinds.Stream | kinds.View):
            topics.setdefault(other.topic, []).append(other.key)
    for view in views:
        for key in topics[view.topic]:
            if key != view.key:
                message = f"its topic {quote(view.topic)} is the topic of {key} too"
                yield view.key, Problem("name", message, "rename one of them")
        stream = find(definitions, kinds.Stream, view.stream)
        problems: list[Problem] = []
        if stream is None:  # a dangling reference, which is told elsewhere
            read_steps(view, problems)
        else:
            plan = find_plan(view, stream, hierarchies, problems)
            if plan is not None:
                problems += check_grouping_risks(
                    view, stream, plan, definitions, partial(_plan_of, definitions, hierarchies)
                )
        yield from ((view.key, problem) for problem in problems)


def _plan_of(
    definitions: Definitions, hierarchies: Mapping[str, Hierarchy], view: kinds.View
) -> ViewPlan | None:
    stream = find(definitions, kinds.Stream, view.stream)
    return None if stream is None else find_plan(view, stream, hierarchies, [])


def check_rest(document: Document, definitions: Definitions) -> Iterator[Problem]:
    """Yield what is wrong with the anonymizers of a view that other fields keep from being one."""
    body = {name: document.body.get(name) for name in ("stream", "anonymizers")}
    try:
        view = kinds.View.model_validate({"name": document.name, **body})
    except ValidationError:
        return  # told already
    stream = find(definitions, kinds.Stream, view.stream)
    if stream is not None:
        problems: list[Problem] = []
        find_plan(view, stream, hierarchies_of(definitions), problems)
        # What is wrong with its window is told already.
        yield from (it for it in problems if it.place.startswith("anonymizers"))


def check_hierarchies(
    found: Iterable[kinds.Hierarchy],
    definitions: Definitions,  # noqa: ARG001
) -> Iterator[Finding]:
    """Yield what keeps hierarchies from being trees."""
    for hierarchy in found:
        try:
            Hierarchy.model_validate(hierarchy.nested())
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
                yield hierarchy.key, Problem("", text, fix or None)


def find(definitions: Definitions, kind: type[Kind], name: str) -> Kind | None:
    """Return one definition, if there is such a one."""
    found = definitions.get(Key(kind.kind, name))
    return found if isinstance(found, kind) else None


@dataclass(frozen=True, slots=True)
class KindCheck:
    """A check of one kind, and the kinds that it looks at."""

    run: Callable[[Any, Mapping[Key, Definition]], Iterator[tuple[Key, Problem]]]
    looks_at: frozenset[str] = frozenset()


CHECKS: Final[Mapping[str, KindCheck]] = {
    "action": KindCheck(check_actions, frozenset({"event", "vocabulary"})),
    "attributes": KindCheck(check_attributes, frozenset({"vocabulary"})),
    "control-subscriber": KindCheck(check_control_subscribers, frozenset({"control"})),
    "emergency-policy": KindCheck(
        check_emergency_policies, frozenset({"plan", "scenario", "vocabulary"})
    ),
    "event": KindCheck(check_events, frozenset({"event", "vocabulary", "plan", "action"})),
    "object": KindCheck(check_objects, frozenset({"vocabulary"})),
    "vocabulary": KindCheck(check_vocabularies),
    "hierarchy": KindCheck(check_hierarchies),
    "plan": KindCheck(check_plans, frozenset({"event", "action", "vocabulary"})),
    "role": KindCheck(check_roles, frozenset({"role"})),
    "scenario": KindCheck(check_scenarios, frozenset({"event", "plan", "vocabulary"})),
    "user": KindCheck(check_users, frozenset({"role"})),
    "view": KindCheck(check_views, frozenset({"stream", "hierarchy", "view", "role"})),
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
            for problem in check_rest(document, definitions):
                place = _place(locate, document.key, problem.place)
                yield Problem(place, problem.message, problem.fix)


def _place(locate: Locate, key: Key, way: str) -> str:
    """Say where a way such as `anonymizers[0].keys[1]` stands."""
    steps = [step for step in way.replace("[", ".").replace("]", "").split(".") if step]
    return locate(key, tuple(int(step) if step.isdigit() else step for step in steps))


class DefinitionSet:
    """All definitions of one moment, checked."""

    def __init__(
        self, definitions: Mapping[Key, Definition], references: ReferenceIndex, scope: Scope
    ) -> None:
        self.definitions = MappingProxyType(definitions)
        self.scope = scope
        self._references = references

    @classmethod
    def empty(cls) -> DefinitionSet:
        """Return the set without definitions."""
        return cls({}, ReferenceIndex(), scope_of([]))

    @classmethod
    def build(cls, documents: Iterable[Document], locate: Locate = locate_by_key) -> DefinitionSet:
        """Check documents as a whole; raise `InvalidError` with all their problems."""
        return cls.empty().change(documents, locate=locate)

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
        return DefinitionSet(definitions, references, scope)

    def of(self, kind: type[Kind]) -> dict[str, Kind]:
        """Return the definitions of one kind, by name, in name order."""
        return {
            key.name: definition
            for key, definition in sorted(self.definitions.items())
            if isinstance(definition, kind)
        }

    def get(self, kind: type[Kind], name: str) -> Kind | None:
        """Return one definition, if there is such a one."""
        found = self.definitions.get(Key(kind.kind, name))
        return found if isinstance(found, kind) else None
