"""Courses: all scenarios at work, and which of them an event concerns.

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
from penstock.cep.rows import Row, Shared
from penstock.cep.scenarios.instances import Course
from penstock.cep.step_result import Detection
from penstock.errors import UsageError, quote

Turn: TypeAlias = tuple[Course, str, Row]
"""A scenario, and the event that may lead on in it."""

_BySubject: TypeAlias = dict[str, list[Course]]


class Courses:
    """The scenarios of one engine."""

    def __init__(self, program: Program, shared: Shared) -> None:
        scenarios = sorted(program.scenarios.items())
        self._courses = {
            name: Course(number, scenario, program.plans[scenario.plan], shared)
            for number, (name, scenario) in enumerate(scenarios)
        }
        self.attributes: dict[str, set[str]] = {}
        """The events that some plan waits for, with the attributes that name subjects."""
        # By event: the scenarios to look at in any case, and those that are found by an
        # attribute. Several with lists and with one plan share one index.
        self._always: dict[str, list[Course]] = {}
        self._listed: dict[str, list[tuple[str, _BySubject]]] = {}
        alike: dict[tuple[str, str], list[Course]] = {}
        for course in self._courses.values():
            for event in course.rank:
                self.attributes.setdefault(event, set()).add(course.attribute)
            if course.subjects is None:
                self._look_always(course)
            else:
                alike.setdefault((course.attribute, course.plan.name), []).append(course)
        for (attribute, _), several in alike.items():
            if len(several) == 1:  # it needs no index
                self._look_always(several[0])
                continue
            index: _BySubject = {}
            for course in several:
                for subject in course.subjects or ():
                    index.setdefault(subject, []).append(course)
            for event in several[0].rank:
                self._listed.setdefault(event, []).append((attribute, index))
        for courses in self._always.values():
            courses.sort(key=attrgetter("number"))

    def _look_always(self, course: Course) -> None:
        for event in course.rank:
            self._always.setdefault(event, []).append(course)

    def __iter__(self) -> Iterator[tuple[str, Course]]:
        return iter(self._courses.items())

    def get(self, scenario: str) -> Course | None:
        """Return the course of a scenario, if there is one."""
        return self._courses.get(scenario)

    def take(self, scenario: str) -> Course:
        """Return the course of a scenario; refuse one that is not defined."""
        course = self._courses.get(scenario)
        if course is None:
            raise UsageError(
                f"there is no scenario {quote(scenario)}", fix="`penstock get scenario` lists them"
            )
        return course

    def arrange(self, detected: Iterable[Detection]) -> Iterable[Turn]:
        """Return which events may lead on in which scenarios, in the order that counts."""
        driving = [item for item in detected if item[0] in self.attributes]
        if len(driving) == 1:
            ((event, row),) = driving
            return [(course, event, row) for course in self._find(event, row)]
        turns = [
            (course.number, course.rank[event], place, course, event, row)
            for place, (event, row) in enumerate(driving)
            for course in self._find(event, row)
        ]
        turns.sort()  # number, rank and place differ in any two
        return [turn[3:] for turn in turns]

    def _find(self, event: str, row: Row) -> Sequence[Course]:
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
