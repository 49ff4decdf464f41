"""Situations: where each scenario stands for each of its subjects.

Rules that hold here:
- A scenario is in one situation for a subject, or inactive; inactive is not stored.
- Of events of one step the plan's priority decides which comes first, then the order in
  which the plan names them.
- An event leads along the one evolution from the present situation, or nowhere.
"""

from __future__ import annotations

from typing import Any

from penstock.cep.program import Evolution, Plan, Scenario
from penstock.cep.rows import Row, Shared
from penstock.errors import UsageError, quote


class Course:
    """One scenario at work."""

    def __init__(self, scenario: Scenario, plan: Plan, shared: Shared) -> None:
        self.scenario = scenario
        self.plan = plan
        self.attribute = scenario.attribute
        self.steps: dict[tuple[str | None, str], tuple[int, Evolution]] = {
            (evolution.source, evolution.event): (number, evolution)
            for number, evolution in enumerate(plan.evolutions)
        }
        self.current: dict[str, str] = {}
        self.since: dict[str, int] = {}
        self._subjects = scenario.subjects
        self._rank = plan.rank()
        self._shared = shared

    def order(self, detected: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
        """Return the events that the plan knows, in the order in which they count."""
        rank = self._rank
        known = [item for item in detected if item[0] in rank]
        if len(known) > 1:
            known.sort(key=lambda item: rank[item[0]])
        return known

    def find(self, event: str, row: Row) -> tuple[str, int, Evolution] | None:
        """Return whom an event leads along which evolution, if any."""
        subject = row.values.get(self.attribute)
        step = self.steps.get((self.current.get(subject), event))  # type: ignore[arg-type]
        if step is None or type(subject) is not str:
            return None
        if self._subjects is not None and subject not in self._subjects:
            return None
        return subject, *step

    def move(self, subject: str, target: str | None, at: int) -> None:
        """Put a subject into a situation, or end it."""
        self._shared.note_change(subject)
        self.current.pop(subject, None)
        self.since.pop(subject, None)
        if target is not None:
            self.current[subject] = target
            self.since[subject] = at
            if len(self.current) > self._shared.limits.subjects:
                oldest = next(iter(self.current))
                self._shared.note_change(oldest)
                del self.current[oldest], self.since[oldest]
                self._shared.counts["dropped_subjects"] += 1

    def check(self, subject: str, situation: str | None) -> None:
        """Refuse a situation or a subject that the scenario does not have."""
        if situation is not None and situation not in self.plan.situations:
            raise UsageError(
                f"plan {quote(self.plan.name)} has no situation {quote(situation)}",
                fix=f"name one of {', '.join(self.plan.situations)}",
            )
        if self._subjects is not None and subject not in self._subjects:
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
                self._subjects is None or subject in self._subjects
            ):
                self.current[subject] = situation
                self.since[subject] = since
