"""Erasures on record: which steps of one are done, and the evidence in the end.

    step, step, … ──▶ rights_erasure_steps ──▶ evidence ──▶ rights_evidence + its digest, audited

Rules that hold here:
- A step is noted when it is done, with what it did: who goes on after a crash begins at the first
  that is not noted. Each step may be done twice and does the same.
- Evidence is written once, together with the entry of the audit log that has its digest. From
  then on the steps are not needed.
- Nothing here says whom it is about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, ForeignKey, String, Table, Text

from penstock.clock import utc_now
from penstock.store.audit.entry import canonical
from penstock.store.audit.reader import read_one
from penstock.store.audit.signatures import Head
from penstock.store.database import Database
from penstock.store.detection.erasures import erasures_table as detection_erasures_table
from penstock.store.detection.tables import AREA as SITUATIONS_AREA
from penstock.store.detection.tables import (
    LED_HERE,
    as_stored,
    situations_table,
    transitions_table,
)
from penstock.store.detection.tables import requests_table as situation_requests_table
from penstock.store.rights.tables import ID_LENGTH, contacts_table, requests_table
from penstock.store.schema import NAME_LENGTH, Moment, metadata

AREA: Final = "erasure"
STEP_LENGTH: Final = 300

steps_table = Table(
    "rights_erasure_steps",
    metadata,
    Column("request", String(ID_LENGTH), ForeignKey(requests_table.c.id), primary_key=True),
    Column("step", String(STEP_LENGTH), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("result", Text, nullable=False),
)
evidence_table = Table(
    "rights_evidence",
    metadata,
    Column("request", String(ID_LENGTH), ForeignKey(requests_table.c.id), primary_key=True),
    Column("subscriber", String(NAME_LENGTH), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("entry", BigInteger, nullable=False),  # its place in the audit log
    Column("evidence", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step that is done, when, and what it did."""

    at: datetime
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was done for a request, and the digest that the audit log has of it."""

    subscriber: str
    at: datetime
    content: Mapping[str, Any]
    entry: int
    """The number of the entry in the audit log."""
    audited: str | None
    """The digest that stands there; None where the entry was pruned."""

    @property
    def digest(self) -> str:
        """The SHA-256 of its canonical JSON."""
        return digest_of(self.content)

    @property
    def is_intact(self) -> bool:
        """Whether it is what the audit log has a digest of."""
        return self.digest == self.audited


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of evidence."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


class ErasureBook:
    """The erasures in a database, and what else the database keeps about a person."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self.clock = clock

    def steps(self, request: str) -> dict[str, StepDone]:
        """Return the steps of a request that are done."""
        rows = steps_table.c
        wanted = sa.select(rows.step, rows.at, rows.result).where(rows.request == request)
        with self._database.read() as connection:
            return {
                step: StepDone(at, json.loads(result))
                for step, at, result in connection.execute(wanted)
            }

    def note(self, request: str, step: str, result: Mapping[str, Any]) -> StepDone:
        """Note that a step is done."""
        rows, made = steps_table.c, StepDone(self.clock(), result)
        with self._database.write(AREA) as connection:
            own = sa.and_(rows.request == request, rows.step == step)
            connection.execute(steps_table.delete().where(own))
            connection.execute(
                steps_table.insert().values(
                    request=request, step=step, at=made.at, result=json.dumps(result)
                )
            )
        return made

    def conclude(
        self,
        request: str,
        subscriber: str,
        content: Mapping[str, Any],
        append: Callable[[Connection, str], Head],
    ) -> None:
        """Write the evidence; `append` puts its digest into the audit log, in the same commit."""
        rows = evidence_table.c
        with self._database.write(AREA) as connection:
            known = sa.select(rows.entry).where(
                rows.request == request, rows.subscriber == subscriber
            )
            if connection.scalar(known) is None:
                entry = append(connection, digest_of(content)).size - 1
                connection.execute(
                    evidence_table.insert().values(
                        request=request, subscriber=subscriber, at=self.clock(), entry=entry,
                        evidence=canonical(content),
                    )
                )  # fmt: skip
            connection.execute(steps_table.delete().where(steps_table.c.request == request))
            asked = detection_erasures_table.c
            connection.execute(
                detection_erasures_table.delete().where(
                    asked.request == request, asked.settled.is_not(None)
                )
            )

    def evidence(self, request: str) -> list[Evidence]:
        """Return the evidence of a request, by service."""
        rows = evidence_table.c
        wanted = sa.select(evidence_table).where(rows.request == request).order_by(rows.subscriber)
        with self._database.read() as connection:
            return [
                Evidence(
                    row.subscriber, row.at, json.loads(row.evidence), row.entry,
                    _read_digest(connection, row.entry, request),
                )
                for row in connection.execute(wanted)
            ]  # fmt: skip

    # --- what else the database keeps ---

    def forget_contacts(self, mark: str) -> int:
        """Delete where front ends tell a person; return how many addresses there were."""
        with self._database.write(AREA) as connection:
            return connection.execute(
                contacts_table.delete().where(contacts_table.c.subject == mark)
            ).rowcount

    def requests_of(self, mark: str) -> list[str]:
        """Return all requests of a person."""
        wanted = sa.select(requests_table.c.id).where(requests_table.c.subject == mark)
        with self._database.read() as connection:
            return list(connection.scalars(wanted))

    def situations(self, person: str) -> list[dict[str, Any]]:
        """Return the steps of a person between situations, oldest first."""
        rows = transitions_table.c
        wanted = (
            sa.select(rows.at, rows.scenario, rows.source, rows.target, rows.event, rows.cause)
            .where(rows.subject == as_stored(person))
            .order_by(rows.number)
        )
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(wanted)]  # noqa: SLF001

    def is_standing(self, person: str) -> bool:
        """Say whether a person is in a situation now."""
        rows = situations_table.c
        wanted = sa.select(rows.scenario).where(rows.subject == as_stored(person)).limit(1)
        with self._database.read() as connection:
            return connection.execute(wanted).first() is not None

    def forget_situations(self, person: str) -> tuple[int, int]:
        """Delete past situations of a person; return how many steps, and how many hold still.

        The step that led to where the person stands now stays until that ends: an emergency does
        not end because somebody asks for a deletion.
        """
        subject = as_stored(person)
        with self._database.write(SITUATIONS_AREA) as connection:
            current = sa.select(transitions_table.c.number).join(situations_table, LED_HERE)
            past = sa.and_(
                transitions_table.c.subject == subject, transitions_table.c.number.not_in(current)
            )
            asked = sa.select(transitions_table.c.request).where(
                transitions_table.c.request.is_not(None)
            )
            gone = connection.execute(transitions_table.delete().where(past)).rowcount
            rows = situation_requests_table.c
            gone += connection.execute(
                situation_requests_table.delete().where(
                    rows.subject == subject, rows.settled.is_not(None), rows.request.not_in(asked)
                )
            ).rowcount
            standing = sa.select(sa.func.count()).where(situations_table.c.subject == subject)
            return gone, connection.scalar(standing) or 0


def _read_digest(connection: Connection, entry: int, request: str) -> str | None:
    """Return what the audit log says of the evidence of a request."""
    found = read_one(connection, entry)
    details = {} if found is None else json.loads(found.entry.details)
    return details.get("digest") if details.get("request") == request else None
