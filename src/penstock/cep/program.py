"""A program: event types, actions, plans and scenarios, compiled and in order.

Rules that hold here:
- Operators stand so that inputs come first; a type's name leads to its operator.
- Nothing here has state: one program serves any number of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.cep.algebra import Assignment, Operator


@dataclass(frozen=True, slots=True)
class CompiledAction:
    """A message that is made of each event of a type; expressions see `it`."""

    name: str
    event: str
    topic: str
    payload: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class CompiledEvolution:
    """A step between situations; None is inactive."""

    event: str | None
    source: str | None
    target: str | None
    actions: tuple[str, ...] = ()
    priority: int = 0
    after: int | None = None
    """Without an event: after so many milliseconds in the source."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """How an emergency may develop."""

    name: str
    situations: Mapping[str, int]
    evolutions: tuple[CompiledEvolution, ...]

    def rank(self) -> dict[str, tuple[int, int]]:
        """Return the order of events of one moment: greatest priority, then as written."""
        ranks: dict[str, tuple[int, int]] = {}
        for index, evolution in enumerate(self.evolutions):
            if evolution.event is None:
                continue
            found = ranks.get(evolution.event)
            first = index if found is None else found[1]
            priority = -evolution.priority if found is None else min(found[0], -evolution.priority)
            ranks[evolution.event] = (priority, first)
        return ranks


@dataclass(frozen=True, slots=True)
class CompiledScenario:
    """A plan, and whom it is followed for: those listed, or involved; otherwise everyone."""

    name: str
    plan: str
    attribute: str
    subjects: frozenset[str] | None = None
    involves: Callable[[str], bool] | None = None

    def concerns(self, subject: str) -> bool:
        """Say whether it is followed for a subject."""
        if self.subjects is not None:
            return subject in self.subjects
        return self.involves is None or self.involves(subject)


@dataclass(frozen=True, slots=True)
class Program:
    """All that an engine carries out."""

    operators: tuple[Operator, ...] = ()
    types: Mapping[str, int] = field(default_factory=dict)
    actions: Mapping[str, CompiledAction] = field(default_factory=dict)
    plans: Mapping[str, CompiledPlan] = field(default_factory=dict)
    scenarios: Mapping[str, CompiledScenario] = field(default_factory=dict)

    def names(self) -> dict[int, tuple[str, ...]]:
        """Return the event types that each operator stands for."""
        found: dict[int, tuple[str, ...]] = {}
        for name, index in sorted(self.types.items()):
            found[index] = (*found.get(index, ()), name)
        return found

    def has_situation(self, scenario: str, subject: str, situation: str | None) -> bool:
        """Say whether a subject of a scenario can be in a situation."""
        found = self.scenarios.get(scenario)
        if found is None or not found.concerns(subject):
            return False
        return situation in self.plans[found.plan].situations
