"""What a set of definitions decides: purposes and policies together, explained.

Rules that hold here:
- Reading needs both: a purpose that the topic's reservations allow, and, where
  policies are required, a satisfied policy. Writing needs a policy only.
- The first part that denies decides; the explanation lists what all parts considered.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.definitions.set import DefinitionSet
from penstock.errors import UsageError, quote
from penstock.lang import BOOL, compile_expression
from penstock.model.kinds import (
    Enforcement,
    Group,
    Policy,
    Purpose,
    PurposeSettings,
    Reservation,
)
from penstock.model.purposes import check_purpose
from penstock.model.topics import check_topic
from penstock.policy.attributes import Action, Asker, Membership, Policies
from penstock.policy.decision import Decision
from penstock.policy.purpose_explanations import explain_topic
from penstock.policy.reservations import Reservations


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a subject may read or write a topic, for a purpose, now."""

    topic: str
    action: Action = "read"
    purpose: str | None = None
    user: str | None = None
    client: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    object: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


class Decider:
    """Answers questions under one set of definitions."""

    def __init__(self, definitions: DefinitionSet) -> None:
        settings = definitions.get(PurposeSettings, "default") or PurposeSettings()
        self._allow_unreserved = settings.allow_without_reservation
        self.reservations = Reservations(cached=False, allow_unreserved=self._allow_unreserved)
        self.reservations.replace_all(
            (item.name, item.purposes) for item in definitions.of(Reservation).values()
        )
        self._membership = Membership(definitions.of(Group).values())
        self.policies = Policies(
            (policy, compile_expression(policy.when, definitions.scope, BOOL))
            for policy in definitions.of(Policy).values()
        )
        self._purposes = frozenset(definitions.of(Purpose))
        enforcement = definitions.get(Enforcement, "default")
        self.policies_required = enforcement is not None and enforcement.policies == "required"

    def decide(self, question: Question, *, now: datetime) -> Decision:
        """Decide one question, with the reason and all rules considered."""
        check_topic(question.topic)
        if question.purpose is not None:
            self._check_declared(check_purpose(question.purpose))
        parts = []
        if question.action == "read":
            parts.append(
                explain_topic(
                    self.reservations,
                    question.topic,
                    question.purpose,
                    allow_unreserved=self._allow_unreserved,
                )
            )
        elif question.purpose is not None:
            raise UsageError(
                "a purpose belongs to reading; writing has none", fix="leave out the purpose"
            )
        if self.policies_required:
            parts.append(self._decide_by_policies(question, now))
        return join(parts)

    def _check_declared(self, purpose: str) -> None:
        """Refuse a purpose that is not declared, once some are: it is a typing error."""
        if self._purposes and purpose not in self._purposes:
            near = difflib.get_close_matches(purpose, self._purposes, n=1)
            raise UsageError(
                f"there is no purpose {quote(purpose)}",
                fix=f"did you mean {near[0]!r}?" if near else "`penstock get purpose` lists them",
            )

    def _decide_by_policies(self, question: Question, now: datetime) -> Decision:
        asker = Asker(
            user=question.user,
            client=question.client,
            groups=self._membership.groups_of(question.user, question.client),
            attributes=question.attributes,
        )
        environment = {"time": now, **question.environment}
        if question.purpose is not None:
            environment["purpose"] = question.purpose
        return self.policies.decide(
            question.action,
            asker,
            question.topic,
            o=question.object,
            e=environment,
            t={
                "topic": question.topic,
                "clientId": question.client,
                "user": question.user,
                "payload": question.payload,
            },
        )


def join(parts: list[Decision]) -> Decision:
    """Join decisions that must all allow: the first that denies decides, else the last."""
    if not parts:
        return Decision(
            allowed=True, rule="enforcement default", reason="policies are not required for writing"
        )
    deciding = next((part for part in parts if not part.allowed), parts[-1])
    return Decision(
        allowed=deciding.allowed,
        rule=deciding.rule,
        reason=deciding.reason,
        considered=tuple(item for part in parts for item in part.considered),
        more=any(part.more for part in parts),
    )
