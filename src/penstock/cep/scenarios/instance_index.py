"""ScenarioInstances: all scenarios at work, and which of them an event concerns.

Rules that hold here:
- Scenarios are followed in the order of their names, each by its own plan's priority.
- However many scenarios there are, an event costs no more than those that concern it: the
  ones for everyone, and the ones whose list of subjects has the event's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias

from penstock.cep.program import Program
from penstock.cep.rows import EngineContext, Row
from penstock.cep.scenarios.instances import ScenarioInstance
from penstock.cep.step_result import DetectedEvent
from penstock.errors import UsageError, quote

Candidate: TypeAlias = tuple[ScenarioInstance, str, Row]
"""A scenario, and the event that may lead on in it."""

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
                self._look_always(instance)
            else:
                alike.setdefault((instance.attribute, instance.plan.name), []).append(instance)
        for (attribute, _), several in alike.items():
            if len(several) == 1:  # it needs no index
                self._look_always(several[0])
                continue
            index: _BySubject = {}
            for instance in several:
                for subject in instance.subjects or ():
                    index.setdefault(subject, []).append(instance)
            for event in several[0].rank:
                self._listed.setdefault(event, []).append((attribute, index))
        for instances in self._always.values():
            instances.sort(key=attrgetter("number"))

    def _look_always(self, instance: ScenarioInstance) -> None:
        for event in instance.rank:
            self._always.setdefault(event, []).append(instance)

    def __iter__(self) -> Iterator[tuple[str, ScenarioInstance]]:
        return iter(self._instances.items())

    def get(self, scenario: str) -> ScenarioInstance | None:
        """Return the instance of a scenario, if there is one."""
        return self._instances.get(scenario)

    def take(self, scenario: str) -> ScenarioInstance:
        """Return the instance of a scenario; refuse one that is not defined."""
        instance = self._instances.get(scenario)
        if instance is None:
            raise UsageError(
                f"there is no scenario {quote(scenario)}", fix="`penstock get scenario` lists them"
            )
        return instance

    def arrange(self, detected: Iterable[DetectedEvent]) -> Iterable[Candidate]:
        """Return which events may lead on in which scenarios, in the order that counts."""
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
