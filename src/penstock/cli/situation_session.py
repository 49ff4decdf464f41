"""What the verbs of situations work with: definitions, the store's tables, who asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.proof import prove
from penstock.cli.session import actor, configuration, open_database, refuse_missing_store
from penstock.errors import DeniedError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.definitions import DefinitionSet
    from penstock.model.kinds import Plan, Scenario
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.database import Database
    from penstock.store.situations import Situations


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything that is open while a verb runs."""

    config: Config
    database: Database
    definitions: DefinitionSet
    situations: Situations
    log: AuditLog
    people: Pseudonyms

    def prove(self, user: str | None, password_file: Path | None) -> str:
        """Return who asks. Where two persons are needed, each must prove who they are."""
        from penstock.store.audit.entry import Entry, Outcome

        if user is None:
            if self.config.gateway.emergencies.two_persons:
                raise UsageError(
                    "two persons are needed, and a login name proves nothing",
                    fix="say who you are with --as USER, and give your password",
                )
            return actor()
        if not prove(self.config, user, password_file):
            person = self.people.person(user)
            self.log.append([Entry.make("situation.refused", Outcome.DENIED, actor=person)])
            raise DeniedError("wrong user name or password", fix="`penstock password` sets one")
        return user

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
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.checked import CheckedDefinitions
    from penstock.store.definitions import Definitions
    from penstock.store.situations import Situations
    from penstock.telemetry import configure

    config = configuration()
    refuse_missing_store(config)
    # Keys that are made at the first use are told of in words, not as JSON.
    configure(level=config.log.level, style="console")
    with open_database(config) as database:
        _, definitions = CheckedDefinitions(Definitions(database)).current()
        log = AuditLog.open(database, config.audit.signing_key)
        try:
            people = Pseudonyms.open(config.audit.pseudonym_key)
            situations = Situations(database, log, people)
            yield Desk(config, database, definitions, situations, log, people)
        finally:
            log.close()
