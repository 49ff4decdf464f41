"""Situations by hand: who may ask for them, and what nobody could carry out.

    wish ─▶ right? ─▶ scenario, situation, subject known? ─▶ request (`situations`) ─▶ the leader
              └─ no: refused, and in the audit log

Rules that hold here:
- Command line and console ask here, so that both refuse alike. Who asks is proved by them.
- First the right: who has none learns nothing about anybody's situation.
- Rights are left out in open mode only, which is for trials.
- Where two persons are needed, the right of who asked is looked up again when it is approved.
- To take back a request of one's own needs no right.
- A scenario that is followed for everyone takes any name. So a name that stands nowhere in the
  definitions and never had a case is refused, unless it is said to be meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.config.gateway import GatewaySettings
from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right
from penstock.definitions.events.subjects import FilterCompiler
from penstock.errors import DeniedError, UsageError, quote
from penstock.model.kinds import Attributes, Group, Plan, Scenario, User
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.detection.situations import Situations, name_details
from penstock.store.detection.tables import Request


class UnknownSubjectError(UsageError):
    """A subject that nobody knows: a slip, or somebody new."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for; `sure` that the name is right."""

    scenario: str
    subject: str
    situation: str | None
    reason: str
    hold: int = 0
    sure: bool = False


@dataclass(frozen=True, slots=True)
class BreakGlass:
    """Takes requests of people who were proved."""

    situations: Situations
    definitions: DefinitionSet
    settings: GatewaySettings
    log: AuditLog
    people: Pseudonyms
    epoch: int

    def request(self, wish: Wish, actor: str) -> Request:
        """Record a wish; with two persons it waits for the second."""
        self.find_scenario(wish.scenario)
        self.check_right(actor, wish.scenario, wish.subject, wish.situation)
        self._check(wish)
        return self.situations.request(
            wish.scenario,
            wish.subject,
            wish.situation,
            actor=actor,
            reason=wish.reason,
            two_persons=self.settings.emergencies.two_persons,
            hold=wish.hold,
        )

    def approve(self, request: str, actor: str) -> Request:
        """Approve what somebody else asked for, who still has the right to."""
        held = self.situations.find(request)
        for person in (actor, held.actor):
            self.check_right(person, held.scenario, held.subject, held.situation)
        return self.situations.approve(request, actor=actor)

    def withdraw(self, request: str, actor: str) -> Request:
        """Take back what was not carried out yet."""
        held = self.situations.find(request)
        if actor != held.actor:
            self.check_right(actor, held.scenario, held.subject, held.situation)
        return self.situations.withdraw(request, actor=actor)

    def has_right(self, user: str, scenario: str) -> bool:
        """Say whether somebody may set situations of a scenario by hand."""
        if self.settings.open_mode:
            return True
        return find_right(self.definitions, user, lambda it: scenario in it.break_glass) is not None

    def check_right(
        self, user: str, scenario: str, subject: str | None = None, situation: str | None = None
    ) -> None:
        """Refuse who has no right to set situations of a scenario by hand; keep a record."""
        if not self.has_right(user, scenario):
            self.refuse(user, "right", scenario, subject, situation)
            raise DeniedError(
                f"{quote(user)} has no right to set situations of {quote(scenario)} by hand",
                fix="ask the data officer for a `right` whose `break_glass` names the scenario",
            )

    def refuse(
        self,
        user: str,
        code: str,
        scenario: str | None = None,
        subject: str | None = None,
        situation: str | None = None,
    ) -> None:
        """Put on record that somebody was refused, and over what."""
        # Typed by hand and not checked yet: only what is defined is surely no name of a person.
        held = None if scenario is None else self.definitions.get(Scenario, scenario)
        plan = None if held is None else self.definitions.get(Plan, held.plan)
        if plan is None or all(it.id != situation for it in plan.situations):
            situation = None
        entry = Entry.make(
            "situation.refused",
            Outcome.DENIED,
            actor=self.people.person(user),
            subject=None if subject is None else self.people.person(subject),
            epoch=self.epoch,
            reason=code,
            **name_details(scenario=None if held is None else held.name, situation=situation),
        )
        self.log.append([entry])

    def find_scenario(self, name: str) -> tuple[Scenario, Plan]:
        """Return a scenario and its plan."""
        scenario = self.definitions.get(Scenario, name)
        if scenario is None:
            known = ", ".join(self.definitions.of(Scenario)) or "none is defined"
            raise UsageError(f"there is no scenario {quote(name)}", fix=f"scenarios are: {known}")
        return scenario, self.definitions.of(Plan)[scenario.plan]

    def _check(self, wish: Wish) -> None:
        """Refuse at once what no gateway could carry out, and what may be a slip."""
        scenario, subject, situation = wish.scenario, wish.subject, wish.situation
        held, plan = self.find_scenario(scenario)
        known = [it.id for it in plan.situations]
        if situation is not None and situation not in known:
            raise UsageError(
                f"the plan {plan.name} has no situation {quote(situation)}",
                fix=f"name one of {', '.join(known)}",
            )
        if held.subjects is not None and subject not in held.subjects:
            raise UsageError(
                f"{quote(subject)} is not a subject of the scenario {scenario}",
                fix="add it to the scenario's subjects",
            )
        filters = FilterCompiler(self.definitions.definitions, self.definitions.scope)
        involves = filters.find(held)
        if involves is not None and not involves(subject):
            raise UsageError(
                f"{quote(subject)} is not a subject of the scenario {scenario}",
                fix="let its subject_filter involve them in a case of their own",
            )
        if situation is None and not self.situations.current(scenario, subject):
            raise UsageError(
                f"{quote(subject)} is in no situation of {scenario}: there is nothing to end",
                fix=f"`penstock situation list --scenario {scenario}` tells who is in one",
            )
        if not wish.sure and not self._knows(subject):
            raise UnknownSubjectError(
                f"{quote(subject)} stands in no definition and never was in a situation",
                fix="correct the name, or confirm it",
            )

    def _knows(self, subject: str) -> bool:
        return (
            subject in self._list_names()
            or bool(self.situations.current(subject=subject))
            or bool(self.situations.history(subject=subject, limit=1))
        )

    def _list_names(self) -> Iterator[str]:
        """Yield all names of people and things that definitions speak of."""
        definitions = self.definitions
        yield from definitions.of(User)
        for scenario in definitions.of(Scenario).values():
            yield from scenario.subjects or ()
        for group in definitions.of(Group).values():
            yield from (member.partition(":")[2] for member in group.members)
        for name, attributes in definitions.of(Attributes).items():
            yield name.partition(":")[2]
            yield from _list_texts(attributes.on_behalf_of)
            yield from _list_texts(list(attributes.values.values()))


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for it in value:
            yield from _list_texts(it)
