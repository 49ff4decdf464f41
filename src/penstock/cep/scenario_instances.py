"""Scenario instances: the state machine of each scenario, with the situation of each subject.

Rules that hold here:
- A scenario is in one situation for a subject, or inactive; inactive is not stored.
- Of events of one step the plan's priority decides which comes first, then the order in
  which the plan names them.
- An event leads along the one evolution from the present situation, or nowhere.
- A case that is held by hand follows no event until its time is over, and then ends.
- A situation with a longest duration is left by the evolution that the plan has for it, unless
  an event of the same moment leads elsewhere. It is counted from the entry, and again from each
  further entry; while somebody holds the case, it is not.
- Where too many subjects are in some situation the oldest case ends, with a transition of
  its own: of those that nobody holds, as long as there is one.
- Scenarios are followed in the order of their names, each by its own plan's priority.
- However many scenarios there are, an event costs no more than those that it concerns: the
  ones for everyone, and the ones whose list of subjects has the event's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from penstock.cep.context import EngineContext, Row
from penstock.cep.program import CompiledEvolution, CompiledPlan, CompiledScenario, Program
from penstock.cep.steps import DetectedEvent, Transition, TransitionCause
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
            if evolution.event is not None
        }
        self.durations: dict[str | None, tuple[int, int, CompiledEvolution]] = {
            evolution.source: (evolution.after, number, evolution)
            for number, evolution in enumerate(plan.evolutions)
            if evolution.after is not None
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
        if subject in self.held or not self.scenario.concerns(subject):
            return None
        return subject, *step

    def move(self, subject: str, target: str | None, at: int, hold: int = 0) -> Transition | None:
        """Put a subject into a situation, or end it; return what else ends for it."""
        self._context.note_change(subject)
        self.current.pop(subject, None)
        self.since.pop(subject, None)
        until = self.held.pop(subject, None)
        if until is not None and until > self._context.now:
            self._context.cancel_hold(until, (self.scenario.name, subject))
        if self.durations:
            self._context.cancel_end((self.scenario.name, subject))
        if target is None:
            return None
        self.current[subject] = target
        self.since[subject] = at
        if hold:
            self._hold(subject, at + hold)
        else:
            self._await_end(subject)
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
        self._context.schedule_hold(until, (self.scenario.name, subject))

    def _await_end(self, subject: str) -> None:
        """Set the timer of the longest duration of a subject's situation."""
        step = self.durations.get(self.current[subject])
        if step is not None:
            case = (self.scenario.name, subject)
            self._context.schedule_end(self.since[subject] + step[0], case)

    def find_overdue(self, subject: str) -> tuple[int, CompiledEvolution] | None:
        """Return the evolution of a situation that has lasted for its longest duration."""
        step = self.durations.get(self.current.get(subject))
        if step is None or subject in self.held:
            return None
        after, number, evolution = step
        return (number, evolution) if self.since[subject] + after <= self._context.now else None

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
        if not self.scenario.concerns(subject):
            fix = "add it to the scenario's subjects, or to its group"
            if self.scenario.involves is not None:
                fix = "let the scenario's subject_filter involve it in a case of its own"
            raise UsageError(
                f"{quote(subject)} is not a subject of scenario {quote(self.scenario.name)}",
                fix=fix,
            )
        check_hold(situation, hold)

    def save(self) -> Any:
        """Return where each subject stands."""
        return [[subject, it, self.since[subject]] for subject, it in self.current.items()]

    def load(self, state: Any, held: Any) -> None:
        """Take the situations back that the plan still has, for those it still concerns."""
        for subject, situation, since in state:
            if situation in self.plan.situations and self.scenario.concerns(subject):
                self.current[subject] = situation
                self.since[subject] = since
                if subject in held:
                    self._hold(subject, held[subject])
                else:
                    self._await_end(subject)


Candidate: TypeAlias = tuple[ScenarioInstance, str, Row]
"""A scenario, and the event that may cause a transition in it."""

_BySubject: TypeAlias = dict[str, list[ScenarioInstance]]


class ScenarioInstances:
    """The scenarios of one engine."""

    def __init__(self, program: Program, context: EngineContext) -> None:
        scenarios = sorted(program.scenarios.items())
        self._instances = {
            name: ScenarioInstance(number, scenario, program.plans[scenario.plan], context)
            for number, (name, scenario) in enumerate(scenarios)
        }
        self.attributes: dict[str, set[str]] = {}
        """The events that some plan waits for, with the attributes that name subjects."""
        # By event: the scenarios to look at in any case, and those that are found by an
        # attribute. Several with lists and with one plan share one index.
        self._always: dict[str, list[ScenarioInstance]] = {}
        self._listed: dict[str, list[tuple[str, _BySubject]]] = {}
        alike: dict[tuple[str, str], list[ScenarioInstance]] = {}
        for instance in self._instances.values():
            for event in instance.rank:
                self.attributes.setdefault(event, set()).add(instance.attribute)
            if instance.subjects is None:
                self._index_for_all(instance)
            else:
                alike.setdefault((instance.attribute, instance.plan.name), []).append(instance)
        for (attribute, _), several in alike.items():
            if len(several) == 1:  # it needs no index
                self._index_for_all(several[0])
                continue
            index: _BySubject = {}
            for instance in several:
                for subject in instance.subjects or ():
                    index.setdefault(subject, []).append(instance)
            for event in several[0].rank:
                self._listed.setdefault(event, []).append((attribute, index))
        for instances in self._always.values():
            instances.sort(key=attrgetter("number"))

    def _index_for_all(self, instance: ScenarioInstance) -> None:
        for event in instance.rank:
            self._always.setdefault(event, []).append(instance)

    def __iter__(self) -> Iterator[tuple[str, ScenarioInstance]]:
        return iter(self._instances.items())

    def get(self, scenario: str) -> ScenarioInstance | None:
        """Return the instance of a scenario, if there is one."""
        return self._instances.get(scenario)

    def require(self, scenario: str) -> ScenarioInstance:
        """Return the instance of a scenario; refuse one that is not defined."""
        instance = self._instances.get(scenario)
        if instance is None:
            raise UsageError(
                f"there is no scenario {quote(scenario)}", fix="`penstock get scenario` lists them"
            )
        return instance

    def arrange(self, detected: Iterable[DetectedEvent]) -> Iterable[Candidate]:
        """Return the events that may cause a transition, and where, in the order that counts."""
        driving = [item for item in detected if item[0] in self.attributes]
        if len(driving) == 1:
            ((event, row),) = driving
            return [(instance, event, row) for instance in self._find(event, row)]
        turns = [
            (instance.number, instance.rank[event], place, instance, event, row)
            for place, (event, row) in enumerate(driving)
            for instance in self._find(event, row)
        ]
        turns.sort()  # number, rank and place differ in any two
        return [turn[3:] for turn in turns]

    def _find(self, event: str, row: Row) -> Sequence[ScenarioInstance]:
        """Return the scenarios that an event may concern, in their order."""
        always, listed = self._always.get(event, ()), self._listed.get(event)
        if listed is None:
            return always
        found = list(always)
        for attribute, index in listed:
            subject = row.values.get(attribute)
            if type(subject) is str:
                found += index.get(subject, ())
        found.sort(key=attrgetter("number"))
        return found


def check_hold(situation: str | None, hold: int) -> None:
    """Refuse to hold what ends, or for longer than anybody may."""
    if hold and situation is None:
        raise UsageError("what ends cannot be held", fix="name a situation, or leave out the hold")
    if not 0 <= hold <= LONGEST_HOLD:
        raise UsageError(
            f"a situation cannot be held for {quote(f'{hold} ms')}",
            fix="hold it for 7 days at most",
        )
