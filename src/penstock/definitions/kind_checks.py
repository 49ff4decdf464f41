"""The checks that look at other definitions, by kind.

Rules that hold here:
- A check tells all that is wrong with definitions of a kind in the light of the whole set.
- What a change can break is checked again, and nothing else: the definitions that
  changed, and those that look at a kind that changed.
- A check is loaded when a set holds its kind: who has no views loads no masks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.definitions.checks import Locate
from penstock.errors import Problem
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds import View


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


CHECKS: Final[Mapping[str, KindCheck]] = {
    "action": KindCheck("events.program:check_actions", frozenset({"event", "vocabulary"})),
    "attributes": KindCheck("checks.access:check_attributes", frozenset({"vocabulary"})),
    "control-subscriber": KindCheck(
        "checks.controls:check_control_subscribers", frozenset({"control"})
    ),
    "emergency-policy": KindCheck(
        "checks.access:check_emergency_policies", frozenset({"plan", "scenario", "vocabulary"})
    ),
    "event": KindCheck(
        "events.program:check_events", frozenset({"event", "vocabulary", "plan", "action"})
    ),
    "object": KindCheck("checks.access:check_objects", frozenset({"vocabulary"})),
    "vocabulary": KindCheck("checks.access:check_vocabularies"),
    "hierarchy": KindCheck("view_checks:check_hierarchies"),
    "plan": KindCheck("events.program:check_plans", frozenset({"event", "action", "vocabulary"})),
    "role": KindCheck("checks.access:check_roles", frozenset({"role"})),
    "scenario": KindCheck(
        "events.program:check_scenarios", frozenset({"event", "plan", "vocabulary"})
    ),
    "user": KindCheck("checks.access:check_users", frozenset({"role"})),
    "view": KindCheck(
        "view_checks:check_views", frozenset({"stream", "hierarchy", "view", "role"})
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
