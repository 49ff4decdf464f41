"""What emergencies mean for access: situations, whose they are, and what applies in them.

Rules that hold here:
- A scenario has one current situation for each subject, or none.
- An emergency policy applies where the scenario's subject that the message is about is in
  one of its situations; with `any_object`, where some subject is. It applies to those alone
  whom the scenario's subject filter involves in that case.
- A filter sees who asks (`s`) and the case (`c`). One that errs or misses an attribute involves
  nobody and chooses nothing: ordinary policies go on for whom no case involves.
- What cannot be told grants nothing. Where ordinary policies would be set aside if it held,
  they are set aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.lang import INT, STRING, Expression, RecordType, Scope
from penstock.policy.decision import Applied

SCENARIO_CASE: Final = RecordType((("subject", STRING), ("scenario", STRING), ("plan", STRING)))
"""What filters of scenarios see as `c`."""
SITUATION_CASE: Final = RecordType((*SCENARIO_CASE.fields, ("situation", STRING), ("level", INT)))
"""What filters of situations see as `c`."""


def filter_scope(scope: Scope, case: RecordType) -> Scope:
    """Return what filters see: who asks, and the case."""
    return Scope((("s", scope.root("s") or RecordType(())), ("c", case)))


class SituationsUnknownError(PenstockError):
    """The situations are not known now, as where detection has stalled."""


class Situations(Protocol):
    """What is asked about emergencies while deciding; both questions are cheap."""

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive.

        Raise `SituationsUnknownError` where that is not known.
        """
        ...

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        ...

    def cases(self, scenario: str) -> Iterable[tuple[str, str]]:
        """Return the subjects of a scenario that are in some situation, with it."""
        ...

    @property
    def changes(self) -> int:
        """A number that is another whenever the answers may be."""
        ...


class SituationBoard:
    """The situations of all scenarios, moved by hand: of tests, questions, or a feed.

    `changes` counts the moves. An invalidated board answers nothing until it is filled or
    revalidated.
    """

    def __init__(self, held: Iterable[tuple[str, str, str]] = ()) -> None:
        self.changes = 0
        self.fill(held)

    def fill(self, held: Iterable[tuple[str, str, str]]) -> None:
        """Take over all situations: scenario, subject, situation. Nothing else holds."""
        self._current: dict[str, dict[str, str]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._invalid: str | None = None
        self.changes += 1
        for scenario, subject, situation in held:
            self.move(scenario, subject, situation)

    def invalidate(self, reason: str) -> None:
        """Take note that the situations are not known any more."""
        self._invalid = reason
        self.changes += 1

    def revalidate(self) -> None:
        """Take note that what was known, and moved since, holds after all."""
        self._invalid = None
        self.changes += 1

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        if self._invalid is not None:
            raise SituationsUnknownError(self._invalid)
        cases = self._current.get(scenario)
        return None if cases is None else cases.get(subject)

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        if self._invalid is not None:
            raise SituationsUnknownError(self._invalid)
        counts = self._counts.get(scenario)
        return counts.keys() if counts else frozenset()

    def cases(self, scenario: str) -> Iterable[tuple[str, str]]:
        """Return the subjects of a scenario that are in some situation, with it."""
        if self._invalid is not None:
            raise SituationsUnknownError(self._invalid)
        return self._current.get(scenario, {}).items()

    def move(self, scenario: str, subject: str, situation: str | None) -> None:
        """Let a scenario's subject enter a situation, or leave all with None."""
        cases = self._current.setdefault(scenario, {})
        before = cases.pop(subject, None)
        counts = self._counts.setdefault(scenario, Counter())
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        if situation is not None:
            cases[subject] = situation
            counts[situation] += 1
        self.changes += 1


NO_SITUATIONS = SituationBoard()
"""No scenario is active."""


class RecordedSituations:
    """Passes questions on to who knows the situations, and remembers the answers.

    So an explanation can name the situations that a decision looked at.
    """

    def __init__(self, situations: Situations) -> None:
        self._situations = situations
        self.seen: dict[tuple[str, str | None], tuple[str, ...]] = {}
        """The situations found, by scenario and subject; None: of anybody."""

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        found = self._situations.current(scenario, subject)
        self.seen[scenario, subject] = () if found is None else (found,)
        return found

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        found = self._situations.occupied(scenario)
        self.seen[scenario, None] = tuple(sorted(found))
        return found

    def cases(self, scenario: str) -> Iterable[tuple[str, str]]:
        """Return the subjects of a scenario that are in some situation, with it."""
        found = list(self._situations.cases(scenario))
        self.seen[scenario, None] = tuple(sorted({situation for _, situation in found}))
        return found

    @property
    def changes(self) -> int:
        """A number that is another whenever the answers may be."""
        return self._situations.changes


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioFilter:
    """A scenario as emergency policies see it: its plan, and whom its cases involve."""

    name: str
    plan: str
    involves: Expression | None = None  # over s and c; None: everybody

    def case(self, subject: str) -> dict[str, Any]:
        """Return what filters see of the case of a subject, before its situation."""
        return {"subject": subject, "scenario": self.name, "plan": self.plan}


@dataclass(frozen=True, slots=True, eq=False)
class Emergency:
    """When an emergency policy applies; a plan that sets ordinary policies aside is one too."""

    scenarios: tuple[ScenarioFilter, ...]
    situations: frozenset[str] | None  # None: each that is not inactive
    about: Expression | None  # None: any object
    exclusive: bool = False
    levels: Mapping[str, int] = field(default_factory=dict)
    """How severe the situations of the plan are."""
    scenario_filter: Expression | None = None
    situation_filter: Expression | None = None
    filtered: bool = field(init=False)
    """Whether it depends on who asks, or on whose case it is."""

    def __post_init__(self) -> None:
        """Find out once what every decision asks."""
        filters = [self.scenario_filter, self.situation_filter]
        filters += [it.involves for it in self.scenarios]
        object.__setattr__(self, "filtered", any(it is not None for it in filters))

    def __str__(self) -> str:
        situations = (
            "any situation" if self.situations is None else ", ".join(sorted(self.situations))
        )
        if self.situation_filter is not None:
            situations = f"situations where {self.situation_filter.text}"
        whose = f"of {self.about.text}" if self.about is not None else "of anybody"
        names = ", ".join(it.name for it in self.scenarios) or "no scenario"
        text = f"{situations} {whose} in {names}"
        if self.scenario_filter is not None:
            text += f" where {self.scenario_filter.text}"
        involving = dict.fromkeys(it.involves.text for it in self.scenarios if it.involves)
        if involving:
            text += f", for those involved: {'; '.join(involving)}"
        return f"{text}, alone" if self.exclusive else text

    def involving(self, s: Mapping[str, Any], subject: str | None) -> tuple[ScenarioFilter, ...]:
        """Return the scenarios that involve who asks in the case of a subject."""
        if subject is None or not self.filtered:
            return self.scenarios
        return tuple(it for it in self.scenarios if self._involves(s, it, subject))

    def _involves(self, s: Mapping[str, Any], scenario: ScenarioFilter, subject: str) -> bool:
        case = scenario.case(subject)
        return all(
            rule is None or rule.function(s, case) is True
            for rule in (scenario.involves, self.scenario_filter)
        )

    def covers(
        self, s: Mapping[str, Any], scenario: ScenarioFilter, subject: str, situation: str
    ) -> bool:
        """Tell whether it is meant for a situation of a scenario that involves who asks."""
        if self.situations is not None and situation not in self.situations:
            return False
        rule = self.situation_filter
        return rule is None or rule.function(s, self.case(scenario, subject, situation)) is True

    def may_cover(self, scenario: ScenarioFilter, subject: str, situation: str) -> bool:
        """Tell whether it can apply in a situation to somebody: what s decides is left open."""
        if self.situations is not None and situation not in self.situations:
            return False
        case = self.case(scenario, subject, situation)
        rules = (scenario.involves, self.scenario_filter, self.situation_filter)
        return all(rule is None or rule.function({}, case) is not False for rule in rules)

    def case(self, scenario: ScenarioFilter, subject: str, situation: str) -> dict[str, Any]:
        """Return what filters see of a case that is in a situation."""
        level = self.levels.get(situation)
        return {**scenario.case(subject), "situation": situation, "level": level}

    def find(
        self,
        situations: Situations,
        subject: str | None,
        s: Mapping[str, Any],
        scenarios: tuple[ScenarioFilter, ...] | None = None,
    ) -> Applied | None:
        """Return the situation in which it applies now, to a subject and who asks.

        `scenarios` are those that involve who asks, where that was found out before.
        """
        if self.about is None:
            return self._find_any(situations, s)
        if subject is None:
            return None
        for scenario in self.involving(s, subject) if scenarios is None else scenarios:
            current = situations.current(scenario.name, subject)
            if current is not None and self.covers(s, scenario, subject, current):
                return Applied(scenario.name, subject, current)
        return None

    def _find_any(self, situations: Situations, s: Mapping[str, Any]) -> Applied | None:
        """Return a situation of anybody in whose case who asks is involved."""
        for scenario in self.scenarios:
            occupied = situations.occupied(scenario.name)
            wanted = occupied if self.situations is None else self.situations & occupied
            if wanted and self.filtered:
                wanted = {
                    current
                    for subject, current in situations.cases(scenario.name)
                    if current in wanted
                    and self._involves(s, scenario, subject)
                    and self.covers(s, scenario, subject, current)
                }
            if wanted:
                return Applied(scenario.name, None, min(wanted))
        return None
