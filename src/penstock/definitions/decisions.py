"""What a set of definitions decides: purposes and policies together, explained.

Rules that hold here:
- Reading needs both: a purpose that the topic's reservations allow, and, where
  policies are required, a satisfied policy; preferences hold in any case. Writing needs a
  policy only.
- The first part that denies decides; the explanation lists what all parts considered.
- Questions may be hypothetical: attributes that are given go before those that are known,
  and so do the situations that a question supposes, all of them. Where it supposes none, those
  count that the principal hands over; without them no emergency is there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.definitions.access import AccessDefinitions
from penstock.definitions.set import DefinitionSet
from penstock.errors import UsageError, quote
from penstock.model.kinds import Plan, Purpose, PurposeSettings, Reservation, Scenario
from penstock.model.purposes import check_purpose
from penstock.model.topics import check_topic
from penstock.policy.access.emergencies import SituationBoard, Situations
from penstock.policy.access.objects import Message
from penstock.policy.access.principals import Action
from penstock.policy.decision import Explanation
from penstock.policy.purposes.explanations import explain_topic
from penstock.policy.purposes.reservations import Reservations


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
    publisher: str | None = None
    """The user who published the message that is read."""
    situations: Mapping[str, str] = field(default_factory=dict)
    """Supposed situations by scenario and subject, `covid/patient-17`."""


class Decider:
    """Answers questions under one set of definitions."""

    def __init__(self, definitions: DefinitionSet) -> None:
        settings = definitions.get(PurposeSettings, "default") or PurposeSettings()
        self._allow_unreserved = settings.allow_without_reservation
        self.reservations = Reservations(cached=False, allow_unreserved=self._allow_unreserved)
        self.reservations.replace_all(
            (item.name, item.purposes) for item in definitions.of(Reservation).values()
        )
        self.access = AccessDefinitions(definitions).access
        self._purposes = frozenset(definitions.of(Purpose))
        plans = definitions.of(Plan)
        self._situations = {
            name: [situation.id for situation in plans[scenario.plan].situations]
            for name, scenario in definitions.of(Scenario).items()
        }

    @property
    def policies_required(self) -> bool:
        """Whether policies are looked at."""
        return self.access.settings.required

    @property
    def scenarios(self) -> frozenset[str]:
        """The names of all emergency scenarios."""
        return frozenset(self._situations)

    def decide(
        self, question: Question, *, now: datetime, situations: Situations | None = None
    ) -> Explanation:
        """Decide one question, with the reason and all rules considered.

        `situations` are those that hold; a question that supposes some sets them aside.
        """
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
        if self.policies_required or (question.action == "read" and self.access.has_preferences):
            if situations is None or question.situations:
                situations = SituationBoard(self.suppose(question.situations))
            parts.append(self._decide_by_policies(question, now, situations))
        return join(parts)

    def _check_declared(self, purpose: str) -> None:
        """Refuse a purpose that is not declared, once some are: it is a typing error."""
        if self._purposes and purpose not in self._purposes:
            near = difflib.get_close_matches(purpose, self._purposes, n=1)
            raise UsageError(
                f"there is no purpose {quote(purpose)}",
                fix=f"did you mean {near[0]!r}?" if near else "`penstock get purpose` lists them",
            )

    def _decide_by_policies(
        self, question: Question, now: datetime, situations: Situations
    ) -> Explanation:
        environment = {"time": now, **question.environment}
        if question.purpose is not None:
            environment["purpose"] = question.purpose
        writes = question.action == "write"
        message = Message(
            question.topic,
            question.payload,
            user=question.user if writes else question.publisher,
            client=question.client if writes else None,
            about=question.object,
        )
        return self.access.explain(
            question.action,
            self.access.principal(question.user, question.client, question.attributes),
            message,
            environment,
            situations,
        )

    def suppose(self, situations: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return supposed situations as scenario, subject, situation; all must exist."""
        found = []
        for instance, situation in situations.items():
            # Names and subjects may have slashes: the longest name that is known counts.
            fitting = [it for it in self._situations if instance.startswith(f"{it}/")]
            scenario = max(fitting, key=len, default=None)
            if scenario is None or instance == f"{scenario}/":
                raise UsageError(
                    f"{quote(instance)} names no scenario and subject",
                    fix=f"write SCENARIO/SUBJECT; scenarios are {_list(self._situations)}",
                )
            if situation not in self._situations[scenario]:
                raise UsageError(
                    f"the scenario {scenario!r} has no situation {quote(situation)}",
                    fix=f"name one of {_list(self._situations[scenario])}",
                )
            found.append((scenario, instance.removeprefix(f"{scenario}/"), situation))
        return found


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "not defined"


def join(parts: list[Explanation]) -> Explanation:
    """Join decisions that must all allow: the first that denies decides, else the last."""
    if not parts:
        return Explanation(
            allowed=True, rule="enforcement default", reason="policies are not required for writing"
        )
    deciding = next((part for part in parts if not part.allowed), parts[-1])
    return Explanation(
        allowed=deciding.allowed,
        rule=deciding.rule,
        reason=deciding.reason,
        considered=tuple(item for part in parts for item in part.considered),
        more=any(part.more for part in parts),
        situation=deciding.situation,
    )
