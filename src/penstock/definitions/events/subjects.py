"""Whom scenarios are followed for: lists, groups, and subject filters.

Rules that hold here:
- A list or a group goes before the filter. Without both, a scenario is followed for those whom
  its filter involves in a case of their own; without a filter, for everyone.
- A filter that errs or misses an attribute involves nobody.
- Two filters are equal where they answer alike for everybody: people come and go, and only
  where that makes a difference detection is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.lang import BOOL, Expression, RecordType, Scope, compile_expression
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.policy.access.attribute_values import read_attributes
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
        case = ScenarioFilter(self.scenario, self.plan).case(subject)
        answer = self.expression.function({**self.everybody, "uid": subject}, case) is True
        return answer is not (subject in self.exceptions)


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


def find_filter(
    scenario: kinds.Scenario, definitions: Mapping[Key, Definition], scope: Scope
) -> SubjectFilter | None:
    """Return what tells whom a scenario is followed for, where an expression does."""
    listed = scenario.subjects is not None or scenario.group is not None
    if scenario.subject_filter is None or listed:
        return None
    text = scenario.subject_filter
    expression = compile_expression(text, filter_scope(scope, SCENARIO_CASE), BOOL)
    directory = _make_directory(definitions, scope)
    nobody = dict(directory.resolve(None, None).attributes)
    everybody = SubjectFilter(scenario.name, scenario.plan, text, nobody, frozenset(), expression)
    exceptions = set()
    for user in _list_users(definitions):
        case = ScenarioFilter(scenario.name, scenario.plan).case(user)
        answer = expression.function(directory.resolve(user, None).attributes, case) is True
        if answer is not everybody(user):
            exceptions.add(user)
    return SubjectFilter(
        scenario.name, scenario.plan, text, nobody, frozenset(exceptions), expression
    )


def _make_directory(definitions: Mapping[Key, Definition], scope: Scope) -> Directory:
    directory = Directory(scope.root("s") or RecordType(()))
    groups = [it for it in definitions.values() if isinstance(it, kinds.Group)]
    directory.membership = Membership(groups)
    for it in definitions.values():
        if isinstance(it, kinds.Attributes):
            directory.set(it.name, read_attributes(it, scope))
    return directory


def _list_users(definitions: Mapping[Key, Definition]) -> set[str]:
    names: set[str] = set()
    for it in definitions.values():
        if isinstance(it, kinds.Group):
            names.update(it.members)
        elif isinstance(it, kinds.Attributes):
            names.add(it.name)
    return {name.removeprefix(_USER) for name in names if name.startswith(_USER)}
