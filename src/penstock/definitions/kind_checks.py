"""The checks that look at other definitions, by kind.

Rules that hold here:
- A check tells all that is wrong with definitions of a kind in the light of the whole set.
- What a change can break is checked again, and nothing else: the definitions that
  changed, and those that look at a kind that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.definitions.checks import Locate
from penstock.definitions.checks.access import (
    check_attributes,
    check_emergency_policies,
    check_objects,
    check_roles,
    check_users,
    check_vocabularies,
)
from penstock.definitions.checks.controls import check_control_subscribers
from penstock.definitions.events.program import (
    check_actions,
    check_events,
    check_plans,
    check_scenarios,
)
from penstock.definitions.view_checks import check_hierarchies, check_rest, check_views
from penstock.errors import Problem
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds import View


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
