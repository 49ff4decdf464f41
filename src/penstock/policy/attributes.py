"""Policies over attributes: grants to read or write, each under a condition.

Rules that hold here:
- Grants only: one satisfied policy suffices, none satisfied means denied.
- A condition that errs or misses an attribute is not satisfied, and says why.
- A policy is considered if it is about this action and its filter covers the topic;
  all that were considered are named in the explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.lang import Expression
from penstock.model.kinds import Group, Policy
from penstock.model.topics import matches
from penstock.policy.decision import Considered, Decision, list_considered

Action = Literal["read", "write"]
ACTIONS: tuple[Action, ...] = ("read", "write")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: names as the gateway knows them, and attributes for conditions."""

    user: str | None = None
    client: str | None = None
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Membership:
    """Which groups a user or client belongs to, groups within groups included."""

    def __init__(self, groups: Iterable[Group]) -> None:
        held = {group.name: group for group in groups}
        # Which groups take over the members of a group.
        above: dict[str, list[str]] = {}
        for group in held.values():
            for part in group.includes:
                above.setdefault(part, []).append(group.name)
        self._groups: dict[str, set[str]] = {}
        for group in held.values():
            reached = _reach(group.name, above)
            for member in group.members:
                self._groups.setdefault(member, set()).update(reached)

    def groups_of(self, user: str | None, client: str | None) -> frozenset[str]:
        """Return the groups of a user, of a client, and of anyone."""
        found: set[str] = set(self._groups.get("anyone", ()))
        if user is not None:
            found |= self._groups.get(f"user:{user}", set())
        if client is not None:
            found |= self._groups.get(f"client:{client}", set())
        return frozenset(found)


def _reach(start: str, above: Mapping[str, list[str]]) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for name in above.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def covers_asker(subject: str, asker: Asker) -> bool:
    """Whether a subject as definitions write it (`group:nurses`) includes the asker."""
    noun, _, name = subject.partition(":")
    match noun:
        case "anyone":
            return True
        case "user":
            return name == asker.user
        case "client":
            return name == asker.client
        case "group":
            return name in asker.groups
    return False


class Policies:
    """The policies of a set, with their conditions compiled."""

    def __init__(self, policies: Iterable[tuple[Policy, Expression]]) -> None:
        self._policies = sorted(policies, key=lambda item: item[0].name)

    def considered(self, action: Action, topic: str) -> Iterator[tuple[Policy, Expression]]:
        """Yield the policies that are about this action on this topic."""
        for policy, condition in self._policies:
            if policy.allow == action and matches(policy.filter, topic):
                yield policy, condition

    def decide(
        self,
        action: Action,
        asker: Asker,
        topic: str,
        *,
        o: Mapping[str, Any],
        e: Mapping[str, Any],
        t: Mapping[str, Any],
    ) -> Decision:
        """Decide by the policies alone, with an explanation."""
        granting: str | None = None
        looked_at: list[Considered] = []
        for policy, condition in self.considered(action, topic):
            name = f"policy {policy.name}"
            if not covers_asker(policy.subject, asker):
                looked_at.append(Considered(name, f"is for {policy.subject}"))
                continue
            outcome = condition.evaluate(s=asker.attributes, o=o, e=e, t=t)
            if outcome.holds:
                granting = granting or name
                looked_at.append(Considered(name, f"grants {action}"))
            elif outcome.missing:
                looked_at.append(Considered(name, f"cannot be decided: {outcome.reason}"))
            else:
                looked_at.append(Considered(name, "its condition is false"))
        considered, more = list_considered(looked_at)
        if granting:
            return Decision(True, granting, f"it grants {action}", considered, more)  # noqa: FBT003
        reason = (
            f"no policy for {action} on this topic is satisfied"
            if looked_at
            else f"there is no policy for {action} on this topic"
        )
        return Decision(False, "enforcement default", reason, considered, more)  # noqa: FBT003
