"""Situations: where each scenario stands for each of its subjects.

Rules that hold here:
- A scenario is in one situation for a subject, or inactive; inactive is not stored.
- Of events of one step the plan's priority decides which comes first, then the order in
  which the plan names them.
- An event leads along the one evolution from the present situation, or nowhere.
- A case that is held by hand follows no event until its time is over, and then ends.
- Where too many subjects are in some situation the oldest case ends, and is told to have: of
  those that nobody holds, as long as there is one.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from penstock.cep.program import CompiledEvolution, CompiledPlan, CompiledScenario
from penstock.cep.rows import EngineContext, Row
from penstock.cep.step_result import Transition, TransitionCause
from penstock.errors import UsageError, quote

LONGEST_HOLD: Final = 7 * 86_400_000
"""How long somebody can be held in a situation by hand, in milliseconds."""


class ScenarioInstance:
    """One scenario at work."""

    def __init__(
        self, number: int, scenario: CompiledScenario, plan: CompiledPlan, context: EngineContext
    ) -> None:
        self.number = number
        """Its place among all scenarios."""
        self.scenario = scenario
        self.plan = plan
        self.attribute = scenario.attribute
        self.steps: dict[tuple[str | None, str], tuple[int, CompiledEvolution]] = {
            (evolution.source, evolution.event): (number, evolution)
            for number, evolution in enumerate(plan.evolutions)
        }
        self.current: dict[str, str] = {}
        self.since: dict[str, int] = {}
        self.held: dict[str, int] = {}
        """Who is held by hand, and until when."""
        self.subjects = scenario.subjects
        self.rank = plan.rank()
        self._context = context

    def find(self, event: str, row: Row) -> tuple[str, int, CompiledEvolution] | None:
        """Return whom an event leads along which evolution, if any."""
        subject = row.values.get(self.attribute)
        step = self.steps.get((self.current.get(subject), event))  # type: ignore[arg-type]
        if step is None or type(subject) is not str:
            return None
        if subject in self.held or not self._concerns(subject):
            return None
        return subject, *step

    def _concerns(self, subject: str) -> bool:
        return self.subjects is None or subject in self.subjects

    def move(self, subject: str, target: str | None, at: int, hold: int = 0) -> Transition | None:
        """Put a subject into a situation, or end it; return what else ends for it."""
        self._context.note_change(subject)
        self.current.pop(subject, None)
        self.since.pop(subject, None)
        until = self.held.pop(subject, None)
        if until is not None and until > self._context.now:
            self._context.let_go(until, (self.scenario.name, subject))
        if target is None:
            return None
        self.current[subject] = target
        self.since[subject] = at
        if hold:
            self._hold(subject, at + hold)
        if len(self.current) <= self._context.limits.subjects:
            return None
        free = (it for it in self.current if it not in self.held)
        oldest = next(chain(free, self.current))
        source = self.current[oldest]
        self._context.counts["dropped_subjects"] += 1
        self.move(oldest, None, at)
        return Transition(self.scenario.name, oldest, source, None, at, cause=TransitionCause.LIMIT)

    def _hold(self, subject: str, until: int) -> None:
        """Let no event move a subject until then."""
        self.held[subject] = until
        self._context.hold(until, (self.scenario.name, subject))

    def release(self, subject: str) -> Transition:
        """End the case of a subject whose time is over."""
        source = self.current[subject]
        now = self._context.now
        self.move(subject, None, now)
        return Transition(
            self.scenario.name, subject, source, None, now, cause=TransitionCause.TIME
        )

    def check(self, subject: str, situation: str | None, hold: int = 0) -> None:
        """Refuse a situation, a subject or a hold that the scenario does not have."""
        if situation is not None and situation not in self.plan.situations:
            raise UsageError(
                f"plan {quote(self.plan.name)} has no situation {quote(situation)}",
                fix=f"name one of {', '.join(self.plan.situations)}",
            )
        if not self._concerns(subject):
            raise UsageError(
                f"{quote(subject)} is no subject of scenario {quote(self.scenario.name)}",
                fix="add it to the scenario's subjects, or to its group",
            )
        check_hold(situation, hold)

    def save(self) -> Any:
        """Return where each subject stands."""
        return [[subject, it, self.since[subject]] for subject, it in self.current.items()]

    def load(self, state: Any, held: Any) -> None:
        """Take the situations back that the plan still has, for those it still concerns."""
        for subject, situation, since in state:
            if situation in self.plan.situations and self._concerns(subject):
                self.current[subject] = situation
                self.since[subject] = since
                if subject in held:
                    self._hold(subject, held[subject])


def check_hold(situation: str | None, hold: int) -> None:
    """Refuse to hold what ends, or for longer than anybody may."""
    if hold and situation is None:
        raise UsageError("what ends cannot be held", fix="name a situation, or leave out the hold")
    if not 0 <= hold <= LONGEST_HOLD:
        raise UsageError(
            f"a situation cannot be held for {quote(f'{hold} ms')}",
            fix="hold it for 7 days at most",
        )
