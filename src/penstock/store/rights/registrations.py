"""Registrations: services and front ends that somebody without rights asks to be defined.

    propose ──▶ waiting ──approve──▶ approved: a definition is applied as it was proposed
                   │ ├──refuse───▶ refused, with a reason
                   │ └──withdraw─▶ withdrawn

Rules that hold here:
- Nothing that is proposed has an effect: no service is told of anything before it is defined.
- What is proposed stays as it is. Who wants something else proposes it anew.
- Each is decided once. What one user may have waiting is limited, and so is what is kept.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Index, String, Table, Text

from penstock.clock import utc_now
from penstock.errors import UsageError
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.schema import KIND_LENGTH, NAME_LENGTH, Moment, metadata

AREA: Final = "registrations"
MOST_WAITING: Final = 20
"""Of one user."""
MOST_IN_ALL: Final = 1_000
LONGEST: Final = 16_000
SHOWN: Final = 200
KEPT: Final = 100
"""Decided ones of one user."""

registrations_table = Table(
    "rights_registrations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("kind", String(KIND_LENGTH), nullable=False),
    Column("name", String(NAME_LENGTH), nullable=False),
    Column("body", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("status", String(16), nullable=False),
    Column("decided_by", String(NAME_LENGTH)),
    Column("decided", Moment),
    Column("reason", Text, nullable=False, server_default=""),
    Index("ix_rights_registrations_user", "user"),
    Index("ix_rights_registrations_status", "status"),
)
_COLUMNS: Final = registrations_table.c


class RegistrationStatus(StrEnum):
    """What became of a registration."""

    WAITING = "waiting"
    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Registration:
    """Something that somebody asks to be defined."""

    id: str
    user: str
    document: Document
    why: str
    at: datetime
    status: RegistrationStatus
    decided_by: str
    decided: datetime | None
    reason: str


class RegistrationBook:
    """The registrations in a database. Threads may share it."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def propose(self, user: str, document: Document, why: str) -> str:
        """Ask for a definition; return what names the registration."""
        body = json.dumps(document.body)
        if len(body) > LONGEST:
            raise UsageError(
                f"it has more than {LONGEST} characters", fix="name fewer controls or categories"
            )
        identity, waiting = uuid.uuid4().hex, _COLUMNS.status == RegistrationStatus.WAITING.value
        own = _COLUMNS.user == user
        with self._database.write(AREA) as connection:
            count = sa.select(sa.func.count()).select_from(registrations_table).where(waiting)
            in_all = connection.scalar(count) or 0
            of_user = connection.scalar(count.where(own)) or 0
            if of_user >= MOST_WAITING or in_all >= MOST_IN_ALL:
                raise UsageError(
                    f"{of_user} registrations of yours are waiting, {in_all} in all",
                    fix="withdraw one, or ask the data officer to decide on them",
                )
            kept = (
                sa.select(_COLUMNS.id)
                .where(own, sa.not_(waiting))
                .order_by(_COLUMNS.at.desc())
                .offset(KEPT - 1)
            )
            old = connection.scalars(kept).all()
            connection.execute(registrations_table.delete().where(_COLUMNS.id.in_(old)))
            connection.execute(
                registrations_table.insert().values(
                    id=identity,
                    user=user,
                    kind=document.kind,
                    name=document.name,
                    body=body,
                    why=why,
                    at=self._clock(),
                    status=RegistrationStatus.WAITING.value,
                    reason="",
                )
            )
        return identity

    def decide(self, identity: str, status: RegistrationStatus, by: str, reason: str = "") -> bool:
        """Note what became of one; False where that is decided already."""
        waiting = _COLUMNS.status == RegistrationStatus.WAITING.value
        values = {
            "status": status.value, "decided_by": by, "decided": self._clock(), "reason": reason
        }  # fmt: skip
        with self._database.write(AREA) as connection:
            changed = registrations_table.update().where(_COLUMNS.id == identity, waiting)
            return connection.execute(changed.values(values)).rowcount == 1

    def find(self, identity: str) -> Registration | None:
        """Return one; None where there is no such."""
        found = self._list(_COLUMNS.id == identity)
        return found[0] if found else None

    def waiting(self) -> Sequence[Registration]:
        """Return those that wait, the newest first; no more than a page has room for."""
        return self._list(_COLUMNS.status == RegistrationStatus.WAITING.value)

    def of(self, user: str) -> Sequence[Registration]:
        """Return those of a user, the newest first."""
        return self._list(_COLUMNS.user == user)

    def _list(self, *where: sa.ColumnElement[bool]) -> Sequence[Registration]:
        wanted = sa.select(registrations_table).where(*where).order_by(_COLUMNS.at.desc())
        with self._database.read() as connection:
            return [
                Registration(
                    row.id,
                    row.user,
                    Document(row.kind, row.name, json.loads(row.body)),
                    row.why,
                    row.at,
                    RegistrationStatus(row.status),
                    row.decided_by or "",
                    row.decided,
                    row.reason,
                )
                for row in connection.execute(wanted.limit(SHOWN))
            ]
