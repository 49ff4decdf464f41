"""For whom and by whose days events are followed: subjects of scenarios, time zones of plans.

Rules that hold here:
- A list or a group goes before the filter. Without both, a scenario is followed for those whom
  its filter involves in a case of their own; without a filter, for everyone.
- A filter that errs or misses an attribute involves nobody.
- Two filters are equal where they answer alike for everybody: people come and go, and only
  where that makes a difference detection is another.
- An event is for the plans that wait for it, whose actions publish it, or that need it for one of
  these. What is for no plan has UTC.
- Plans with different zones may share events, but none that looks at days.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from penstock.definitions.vocabularies import read_attributes
from penstock.lang import BOOL, Expression, RecordType, Scope, compile_expression
from penstock.lang.scalars import DAY
from penstock.model import kinds
from penstock.model.definition import Definition, Reference, marked
from penstock.model.document import Key
from penstock.model.kinds.events import Pattern
from penstock.policy.access.emergencies import SCENARIO_CASE, ScenarioFilter, filter_scope
from penstock.policy.access.principals import Directory, Membership

_USER = "user:"


@dataclass(frozen=True, slots=True)
class SubjectFilter:
    """Tells whether a scenario involves somebody in a case of their own."""

    scenario: str
    plan: str
    text: str
    everybody: Mapping[str, Any]
    """The attributes of those whom no definition knows."""
    exceptions: frozenset[str]
    """Those known for whom the answer is another than it would be by `everybody`."""
    expression: Expression = field(compare=False, repr=False)

    def __call__(self, subject: str) -> bool:
        """Tell whether the scenario is followed for a subject."""
        answer = self.answer(subject, {**self.everybody, "uid": subject})
        return answer is not (subject in self.exceptions)

    def answer(self, subject: str, attributes: Mapping[str, Any]) -> bool:
        """Tell whether it involves somebody with these attributes in a case of their own."""
        case = ScenarioFilter(self.scenario, self.plan).case(subject)
        return self.expression.function(attributes, case) is True


def find_subjects(
    scenario: kinds.Scenario, definitions: Mapping[Key, Definition]
) -> frozenset[str] | None:
    """Return the list of those a scenario is followed for; None where there is none."""
    if scenario.subjects is not None:
        return frozenset(scenario.subjects)
    if scenario.group is None:
        return None
    found: set[str] = set()
    waiting, seen = [scenario.group], {scenario.group}
    while waiting:
        group = definitions.get(Key("group", waiting.pop()))
        if isinstance(group, kinds.Group):
            users = (member for member in group.members if member.startswith(_USER))
            found.update(member.removeprefix(_USER) for member in users)
            following = [name for name in group.includes if name not in seen]
            waiting += following
            seen.update(following)
    return frozenset(found)


class FilterCompiler:
    """Compiles the subject filters of a set; who everybody is, is found out once."""

    def __init__(self, definitions: Mapping[Key, Definition], scope: Scope) -> None:
        self._definitions = definitions
        self._scope = scope

    @cached_property
    def _directory(self) -> Directory:
        directory = Directory(self._scope.root("s") or RecordType(()))
        held = self._definitions.values()
        directory.membership = Membership(it for it in held if isinstance(it, kinds.Group))
        for it in held:
            if isinstance(it, kinds.Attributes):
                directory.set(it.name, read_attributes(it, self._scope))
        return directory

    @cached_property
    def _users(self) -> Mapping[str, Mapping[str, Any]]:
        """The attributes of all users whom groups and attributes name."""
        names: set[str] = set()
        for it in self._definitions.values():
            if isinstance(it, kinds.Group):
                names.update(it.members)
            elif isinstance(it, kinds.Attributes):
                names.add(it.name)
        users = [name.removeprefix(_USER) for name in names if name.startswith(_USER)]
        return {user: self._directory.resolve(user, None).attributes for user in users}

    def find(self, scenario: kinds.Scenario) -> SubjectFilter | None:
        """Return what tells whom a scenario is followed for, where an expression does."""
        text = scenario.subject_filter
        if text is None or scenario.subjects is not None or scenario.group is not None:
            return None
        expression = compile_expression(text, filter_scope(self._scope, SCENARIO_CASE), BOOL)
        nobody = dict(self._directory.resolve(None, None).attributes)
        made = SubjectFilter(scenario.name, scenario.plan, text, nobody, frozenset(), expression)
        exceptions = {
            user
            for user, attributes in self._users.items()
            if made.answer(user, attributes) is not made(user)
        }
        return replace(made, exceptions=frozenset(exceptions))


_ASKED: Final = re.compile(r"\be\s*\.\s*zone\b")

Zones = Mapping[str, Mapping[str, str]]
"""Of each event the zones, with a plan that names it."""


def find_zones(definitions: Mapping[Key, Definition]) -> Zones:
    """Return the time zones of all events that are for a plan."""
    events = {it.name: it for it in definitions.values() if isinstance(it, kinds.Event)}
    actions = {it.name: it for it in definitions.values() if isinstance(it, kinds.Action)}
    found: dict[str, dict[str, str]] = {}
    plans = [it for it in definitions.values() if isinstance(it, kinds.Plan)]
    for plan in sorted(plans, key=lambda it: it.name):
        waiting = [it.event for it in plan.evolutions if it.event is not None]
        waiting += [
            actions[name].event for it in plan.evolutions for name in it.actions if name in actions
        ]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in events:
                continue
            seen.add(name)
            found.setdefault(name, {}).setdefault(plan.zone, plan.name)
            waiting += _list_parts(events[name])
    return found


def asks_zone(event: kinds.Event) -> bool:
    """Tell whether it matters to an event whose days count."""
    if any(_ASKED.search(text) for text in _list_texts(event)):
        return True
    return event.pattern is not None and any(
        it.visits is not None or (it.window and it.window.each and not it.window.each % DAY)
        for it in _walk(event.pattern)
    )


def _list_parts(event: kinds.Event) -> Iterator[str]:
    for marker, _, name in marked(event):
        if isinstance(marker, Reference) and marker.kind == "event":
            yield name


def _list_texts(event: kinds.Event) -> Iterator[str]:
    if event.packet is not None:
        packet = event.packet
        yield from (packet.when, packet.time or "", packet.id or "", *packet.set.values())
    if event.request is not None:
        yield from event.request.set.values()


def _walk(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    parts: Iterable[Pattern | None] = (
        *(pattern.any_of or ()),
        *(pattern.all_of or ()),
        *(pattern.sequence or ()),
        *(pattern.aggregate or ()),
        pattern.negated,
        pattern.iterate,
        pattern.latest,
        pattern.visits,
        pattern.meetings,
    )
    for part in parts:
        if part is not None:
            yield from _walk(part)
