"""What a situation opens, and to whom: the emergency policies that apply in it now.

Rules that hold here:
- The authorizer is asked which policies there are, compiled, and who everybody is.
- People are the users and clients whom definitions name. A condition that looks at more than
  the person and the subject cannot be answered without a message: such people are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.definitions.access import name_rule, scenarios_by_plan
from penstock.definitions.authorizer import make_authorizer
from penstock.definitions.set import DefinitionSet
from penstock.model import kinds
from penstock.policy.access.emergencies import SituationBoard

_USER = "user:"
_CLIENT = "client:"


@dataclass(frozen=True, slots=True)
class Grant:
    """An emergency policy that applies in a situation."""

    policy: str
    subject: str
    action: str
    filter: str
    when: str
    description: str
    exclusive: bool
    people: list[str] = field(default_factory=list)
    """Those to whom it grants now; clients with `client:` before their identifier."""
    undecided: list[str] = field(default_factory=list)
    """Those for whom it depends on the message."""


def list_grants(
    definitions: DefinitionSet, scenario: str, subject: str, situation: str
) -> list[Grant]:
    """Return the emergency policies that apply while a subject is in a situation."""
    board = SituationBoard([(scenario, subject, situation)])
    access = make_authorizer(definitions).access
    policies = {name_rule(it.key): it for it in definitions.of(kinds.EmergencyPolicy).values()}
    principals = {
        name: access.principal(*who) for name, who in sorted(_list_principals(definitions).items())
    }
    found = []
    for rule in access.emergency_policies():
        emergency = rule.emergency
        if emergency is None:
            continue
        involved = {
            name: principal
            for name, principal in principals.items()
            if emergency.find(board, subject, principal.attributes) is not None
        }
        if not involved and emergency.find(board, subject, {}) is None:
            continue
        policy = policies[rule.name]
        grant = Grant(
            policy.name,
            policy.subject,
            policy.allow,
            policy.filter,
            policy.when,
            policy.description,
            policy.exclusive,
        )
        about = _suppose(policy, subject)
        for name, principal in involved.items():
            if rule.subject not in principal.subjects:
                continue
            outcome = rule.condition.function(principal.attributes, about, {}, {})
            if outcome is True:
                grant.people.append(name)
            elif outcome is None:
                grant.undecided.append(name)
        found.append(grant)
    return found


def list_involved(definitions: DefinitionSet, scenario: str, subject: str) -> list[str] | None:
    """Return the people whom a scenario involves in a case; None where it is everybody."""
    chosen = definitions.of(kinds.Scenario)[scenario]
    filters = scenarios_by_plan(definitions)[chosen.plan]
    found = next(it for it in filters if it.name == scenario)
    if found.involves is None:
        return None
    access = make_authorizer(definitions).access
    case = found.case(subject)
    return [
        name
        for name, who in sorted(_list_principals(definitions).items())
        if found.involves.function(access.principal(*who).attributes, case) is True
    ]


def _suppose(policy: kinds.EmergencyPolicy, subject: str) -> dict[str, Any]:
    """Return the object of a message about the subject, where the policy says how to find it."""
    root, _, name = (policy.about or "").strip().partition(".")
    return {name: subject} if root == "o" and name.isidentifier() else {}


def _list_principals(definitions: DefinitionSet) -> dict[str, tuple[str | None, str | None]]:
    """Return users and clients by the names they are told by."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in _list_names(definitions):
        if name.startswith(_USER):
            user = name.removeprefix(_USER)
            found[user] = (user, None)
        elif name.startswith(_CLIENT):
            # A client counts beside its user, which its identifier begins with.
            client = name.removeprefix(_CLIENT)
            found[name] = (client.partition(":")[0], client)
    return found


def _list_names(definitions: DefinitionSet) -> Iterator[str]:
    for group in definitions.of(kinds.Group).values():
        yield from group.members
    yield from definitions.of(kinds.Attributes)
    for policy in definitions.of(kinds.EmergencyPolicy).values():
        yield policy.subject
