"""What the verbs of situations work with: definitions, the store's tables, who asks about whom.

Rules that hold here:
- Who sets a situation by hand proves who they are, but in open mode, which is for trials; two
  persons are always proved. Whether they may is `store.detection.break_glass`.
- Who is refused is in the audit log.
- A name that nobody knows is asked about before it is put into a situation: who mistook it would
  believe that somebody's data is open now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
    from penstock.store.database import Database
    from penstock.store.detection.break_glass import BreakGlass, Wish
    from penstock.store.detection.situations import Situations
    from penstock.store.detection.tables import Request


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything that is open while a verb runs."""

    config: Config
    database: Database
    definitions: DefinitionSet
    situations: Situations
    glass: BreakGlass

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
            self.glass.refuse(user, "password")
            raise DeniedError("wrong user name or password", fix="`penstock password` sets one")
        return user

    def request(self, wish: Wish, user: str) -> Request:
        """Record a wish; ask about a subject whom nobody knows, and refuse where nobody answers."""
        from penstock.store.detection.break_glass import UnknownSubjectError

        try:
            return self.glass.request(wish, user)
        except UnknownSubjectError as unknown:
            if not sys.stdin.isatty():
                fix = "correct the name, or confirm it with --yes"
                raise UsageError(unknown.message, fix=fix) from None
            if not click.confirm(f"{unknown.message}. Is the name right?", err=True):
                raise UsageError(
                    f"{quote(wish.subject)} was not meant", fix="correct the name"
                ) from None
        return self.glass.request(replace(wish, sure=True), user)

    def scenario(self, name: str) -> tuple[Scenario, Plan]:
        """Return a scenario and its plan."""
        return self.glass.find_scenario(name)

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
    from penstock.store.detection.break_glass import BreakGlass
    from penstock.store.detection.situations import Situations

    with open_audited() as it:
        situations = Situations(it.database, it.log, it.people)
        glass = BreakGlass(
            situations, it.definitions, it.config.gateway, it.log, it.people, it.epoch
        )
        yield Desk(it.config, it.database, it.definitions, situations, glass)
