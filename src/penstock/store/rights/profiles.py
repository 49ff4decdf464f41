"""Profiles as services see them: the state of each control, and where a person can be told.

Rules that hold here:
- What is read here is written in one place, `ConsentBook.note_within`, together with the purposes
  that it prohibits.
- A state is one of two, for a control as a whole (category "") or for one of its categories. Who
  has not chosen has the control's default; there is no unknown state.
- A choice of the whole control replaces the choices of its categories.
- Versions grow by one with every choice, also one that changes nothing: a service that fetches
  the state knows whether it has seen a later one.
- Where a person can be told is sealed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from penstock.store.consent import DIRECT, WHOLE, states_table
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.sealing import Sealer
from penstock.store.rights.tables import contacts_table


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

    def states(self, person: str, control: str | None = None) -> list[ControlState]:
        """Return what a person chose of controls, the whole before categories."""
        rows = states_table.c
        wanted = sa.select(states_table).where(
            rows.subject == self._marks.of(person), rows.control != DIRECT
        )
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

    def set_contact(self, publisher: str, person: str, contact: Mapping[str, str]) -> None:
        """Keep where a front end tells a person; nothing forgets it.

        It is the front end's alone: no other one learns by it what a person asked for there.
        """
        own = self._contact_key(publisher, person)
        with self._database.write("rights") as connection:
            connection.execute(contacts_table.delete().where(own))
            if contact:
                subject = self._marks.of(person)
                sealed = self._sealer.seal(json.dumps(dict(contact)), f"{subject} {publisher}")
                connection.execute(
                    contacts_table.insert().values(
                        subject=subject, publisher=publisher, sealed=sealed, at=self._clock()
                    )
                )

    def contact(self, publisher: str, person: str) -> dict[str, str]:
        """Return where a front end tells a person."""
        wanted = sa.select(contacts_table.c.sealed).where(self._contact_key(publisher, person))
        with self._database.read() as connection:
            sealed = connection.scalar(wanted)
        if sealed is None:
            return {}
        place = f"{self._marks.of(person)} {publisher}"
        found: dict[str, str] = json.loads(self._sealer.open(sealed, place))
        return found

    def contacts(self, person: str) -> dict[str, dict[str, str]]:
        """Return where every front end tells a person."""
        mark = self._marks.of(person)
        wanted = sa.select(contacts_table).where(contacts_table.c.subject == mark)
        with self._database.read() as connection:
            rows = connection.execute(wanted.order_by(contacts_table.c.publisher)).all()
        return {
            row.publisher: json.loads(self._sealer.open(row.sealed, f"{mark} {row.publisher}"))
            for row in rows
        }

    def _contact_key(self, publisher: str, person: str) -> sa.ColumnElement[bool]:
        columns = contacts_table.c
        return sa.and_(columns.subject == self._marks.of(person), columns.publisher == publisher)
