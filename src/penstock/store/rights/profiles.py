"""Profiles: what each person has chosen, the only source of truth about it.

Rules that hold here:
- A state is one of two, for a control as a whole (category "") or for one of its categories. Who
  has not chosen has the control's default; there is no unknown state.
- A choice of the whole control replaces the choices of its categories.
- Versions grow by one with every choice, also one that changes nothing: a service that fetches
  the state knows whether it has seen a later one.
- Where a person can be told is sealed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.sealing import Sealer
from penstock.store.rights.tables import contacts_table, states_table

WHOLE: Final = ""
"""Stands for a control as a whole where a category could stand."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """What a person chose of a control, or of one of its categories."""

    control: str
    category: str
    state: str
    version: int
    at: datetime


class Profiles:
    """The choices of people in a database."""

    def __init__(
        self,
        database: Database,
        marks: SubjectMarks,
        sealer: Sealer,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._marks = marks
        self._sealer = sealer
        self._clock = clock

    def choose_within(
        self,
        connection: Connection,
        subject: str,
        control: str,
        categories: Sequence[str],
        state: str,
    ) -> int:
        """Note a choice, within a transaction of `Database.write`; return its version.

        `subject` is a mark.
        """
        rows = states_table.c
        own = sa.and_(rows.subject == subject, rows.control == control)
        version = (connection.scalar(sa.select(sa.func.max(rows.version)).where(own)) or 0) + 1
        chosen = tuple(categories) or (WHOLE,)
        gone = own if chosen == (WHOLE,) else sa.and_(own, rows.category.in_(chosen))
        connection.execute(states_table.delete().where(gone))
        now = self._clock()
        connection.execute(
            states_table.insert(),
            [
                {
                    "subject": subject, "control": control, "category": category,
                    "state": state, "version": version, "at": now,
                }
                for category in chosen
            ],
        )  # fmt: skip
        return version

    def states(self, person: str, control: str | None = None) -> list[ControlState]:
        """Return what a person chose, the whole before categories."""
        rows = states_table.c
        wanted = sa.select(states_table).where(rows.subject == self._marks.of(person))
        if control is not None:
            wanted = wanted.where(rows.control == control)
        with self._database.read() as connection:
            return [
                ControlState(row.control, row.category, row.state, row.version, row.at)
                for row in connection.execute(wanted.order_by(rows.control, rows.category))
            ]

    def state_of(self, person: str, control: str, category: str, default: str) -> str:
        """Return what holds for a category, or with no category for the whole."""
        found = {it.category: it.state for it in self.states(person, control)}
        return found.get(category, found.get(WHOLE, default))

    def set_contact(self, person: str, contact: Mapping[str, str]) -> None:
        """Keep where a person can be told; nothing forgets it."""
        subject = self._marks.of(person)
        with self._database.write("rights") as connection:
            connection.execute(contacts_table.delete().where(contacts_table.c.subject == subject))
            if contact:
                sealed = self._sealer.seal(json.dumps(dict(contact)), subject)
                values = {"subject": subject, "sealed": sealed, "at": self._clock()}
                connection.execute(contacts_table.insert().values(values))

    def contact(self, person: str) -> dict[str, str]:
        """Return where a person can be told."""
        subject = self._marks.of(person)
        wanted = sa.select(contacts_table.c.sealed).where(contacts_table.c.subject == subject)
        with self._database.read() as connection:
            sealed = connection.scalar(wanted)
        return {} if sealed is None else json.loads(self._sealer.open(sealed, subject))
