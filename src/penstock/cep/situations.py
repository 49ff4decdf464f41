"""Situations: where each scenario stands for each of its subjects.

Rules that hold here:
- A scenario is in one situation for a subject, or inactive; inactive is not stored.
- Of events of one step the plan's priority decides which comes first, then the order in
  which the plan names them.
- An event leads along the one evolution from the present situation, or nowhere.
- Where too many subjects are in some situation the oldest case ends, and is told to have.
"""

from __future__ import annotations

from typing import Any

from penstock.cep.outcome import By, Transition
from penstock.cep.program import Evolution, Plan, Scenario
from penstock.cep.rows import Row, Shared
from penstock.errors import UsageError, quote


class Course:
    """One scenario at work."""

    def __init__(self, number: int, scenario: Scenario, plan: Plan, shared: Shared) -> None:
        self.number = number
        """Its place among all scenarios."""
        self.scenario = scenario
        self.plan = plan
        self.attribute = scenario.attribute
        self.steps: dict[tuple[str | None, str], tuple[int, Evolution]] = {
            (evolution.source, evolution.event): (number, evolution)
            for number, evolution in enumerate(plan.evolutions)
        }
        self.current: dict[str, str] = {}
        self.since: dict[str, int] = {}
        self.subjects = scenario.subjects
        self.rank = plan.rank()
        self._shared = shared

    def find(self, event: str, row: Row) -> tuple[str, int, Evolution] | None:
        """Return whom an event leads along which evolution, if any."""
        subject = row.values.get(self.attribute)
        step = self.steps.get((self.current.get(subject), event))  # type: ignore[arg-type]
        if step is None or type(subject) is not str:
            return None
        if self.subjects is not None and subject not in self.subjects:
            return None
        return subject, *step

    def move(self, subject: str, target: str | None, at: int) -> Transition | None:
        """Put a subject into a situation, or end it; return what else ends for it."""
        self._shared.note_change(subject)
        self.current.pop(subject, None)
        self.since.pop(subject, None)
        if target is None:
            return None
        self.current[subject] = target
        self.since[subject] = at
        if len(self.current) <= self._shared.limits.subjects:
            return None
        oldest = next(iter(self.current))
        source = self.current[oldest]
        self._shared.counts["dropped_subjects"] += 1
        self.move(oldest, None, at)
        return Transition(self.scenario.name, oldest, source, None, at, by=By.LIMIT)

    def check(self, subject: str, situation: str | None) -> None:
        """Refuse a situation or a subject that the scenario does not have."""
        if situation is not None and situation not in self.plan.situations:
            raise UsageError(
                f"plan {quote(self.plan.name)} has no situation {quote(situation)}",
                fix=f"name one of {', '.join(self.plan.situations)}",
            )
        if self.subjects is not None and subject not in self.subjects:
            raise UsageError(
                f"{quote(subject)} is no subject of scenario {quote(self.scenario.name)}",
                fix="add it to the scenario's subjects, or to its group",
            )

    def save(self) -> Any:
        """Return where each subject stands."""
        return [[subject, it, self.since[subject]] for subject, it in self.current.items()]

    def load(self, state: Any) -> None:
        """Take the situations back that the plan still has, for those it still concerns."""
        for subject, situation, since in state:
            if situation in self.plan.situations and (
                self.subjects is None or subject in self.subjects
            ):
                self.current[subject] = situation
                self.since[subject] = since
