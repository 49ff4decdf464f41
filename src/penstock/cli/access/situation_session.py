"""What the verbs of situations work with: definitions, the store's tables, who asks about whom.

Rules that hold here:
- Who sets a situation by hand proves who they are and has a `right` to it (`break_glass`). Both
  are left out in open mode only, which is for trials; and two persons are always proved.
- Who is refused is in the audit log.
- A scenario that is followed for everyone takes any name. So a name that stands nowhere in the
  definitions and never had a case is asked about before it is put into a situation: who
  mistook it would believe that somebody's data is open now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.session import (
    actor,
    authenticate,
    open_audited,
)
from penstock.errors import DeniedError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.definitions import DefinitionSet
    from penstock.model.kinds import Plan, Scenario
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.database import Database
    from penstock.store.detection.situations import Situations


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything that is open while a verb runs."""

    config: Config
    database: Database
    epoch: int
    definitions: DefinitionSet
    situations: Situations
    log: AuditLog
    people: Pseudonyms

    def authenticate(self, user: str | None, password_file: Path | None) -> str:
        """Return who asks, proved by the password; in open mode a login name will do."""
        if user is None:
            gateway = self.config.gateway
            if gateway.emergencies.two_persons or not gateway.open_mode:
                raise UsageError(
                    "a login name proves nothing",
                    fix="say who you are with --as USER, and give your password",
                )
            return actor()
        if not authenticate(self.config, user, password_file):
            self._refuse(user, "password")
            raise DeniedError("wrong user name or password", fix="`penstock password` sets one")
        return user

    def check_right(
        self, user: str, scenario: str, subject: str | None = None, situation: str | None = None
    ) -> None:
        """Refuse who has no right to set situations of a scenario by hand; keep a record."""
        from penstock.definitions.access import find_right

        if self.config.gateway.open_mode:
            return
        if find_right(self.definitions, user, lambda it: scenario in it.break_glass) is None:
            self._refuse(user, "right", scenario, subject, situation)
            raise DeniedError(
                f"{quote(user)} has no right to set situations of {quote(scenario)} by hand",
                fix="ask the data officer for a `right` whose `break_glass` names the scenario",
            )

    def _refuse(
        self,
        user: str,
        code: str,
        scenario: str | None = None,
        subject: str | None = None,
        situation: str | None = None,
    ) -> None:
        """Put on record that somebody was refused, and over what."""
        from penstock.model.kinds import Plan, Scenario
        from penstock.store.audit.entry import Entry, Outcome
        from penstock.store.detection.situations import name_details

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

    def scenario(self, name: str) -> tuple[Scenario, Plan]:
        """Return a scenario and its plan."""
        from penstock.model.kinds import Plan, Scenario

        scenario = self.definitions.get(Scenario, name)
        if scenario is None:
            known = ", ".join(self.definitions.of(Scenario)) or "none is defined"
            raise UsageError(f"there is no scenario {quote(name)}", fix=f"scenarios are: {known}")
        return scenario, self.definitions.of(Plan)[scenario.plan]

    def plan(self, name: str) -> Plan:
        """Return a plan."""
        from penstock.model.kinds import Plan

        plan = self.definitions.get(Plan, name)
        if plan is None:
            known = ", ".join(self.definitions.of(Plan)) or "none is defined"
            raise UsageError(f"there is no plan {quote(name)}", fix=f"plans are: {known}")
        return plan


@contextmanager
def open_desk() -> Iterator[Desk]:
    """Open the store with its audit log, for as long as the block lasts."""
    from penstock.store.detection.situations import Situations

    with open_audited() as it:
        situations = Situations(it.database, it.log, it.people)
        yield Desk(it.config, it.database, it.epoch, it.definitions, situations, it.log, it.people)


def confirm_subject(desk: Desk, subject: str) -> None:
    """Ask about a subject whom nobody knows; refuse it where nobody can be asked."""
    if _is_known(desk, subject):
        return
    told = f"{quote(subject)} stands in no definition and never was in a situation"
    if not sys.stdin.isatty():
        raise UsageError(told, fix="correct the name, or confirm it with --yes")
    if not click.confirm(f"{told}. Is the name right?", err=True):
        raise UsageError(f"{quote(subject)} was not meant", fix="correct the name")


def _is_known(desk: Desk, subject: str) -> bool:
    return (
        subject in _list_names(desk.definitions)
        or bool(desk.situations.current(subject=subject))
        or bool(desk.situations.history(subject=subject, limit=1))
    )


def _list_names(definitions: DefinitionSet) -> Iterator[str]:
    """Yield all names of people and things that definitions speak of."""
    from penstock.model.kinds import Attributes, Group, Scenario, User

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
