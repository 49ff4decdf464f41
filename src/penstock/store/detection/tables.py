"""The tables of situations, transitions and requests by hand, and their rows.

Rules that hold here:
- Who detects writes situations and transitions (`journal`); people write requests
  (`situations`).
- A subject is a text from outside: the tables hold it in the form of `as_stored`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, String, Table

from penstock.store.schema import ACTOR_LENGTH, NAME_LENGTH, REASON_LENGTH, Moment, metadata

AREA: Final = "situations"
REQUEST_BYTES: Final = 16
STATE_LENGTH: Final = 16
TROUBLE_LENGTH: Final = 500
_DIGEST: Final = 16


situations_table = Table(
    "situations",
    metadata,
    Column("scenario", String(NAME_LENGTH), primary_key=True),
    Column("subject", String(NAME_LENGTH), primary_key=True),
    Column("situation", String(NAME_LENGTH), nullable=False),
    Column("since", Moment, nullable=False),
)

transitions_table = Table(
    "transitions",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("scenario", String(NAME_LENGTH), nullable=False),
    Column("subject", String(NAME_LENGTH), nullable=False),
    Column("source", String(NAME_LENGTH)),
    Column("target", String(NAME_LENGTH)),
    Column("event", String(NAME_LENGTH)),
    Column("cause", String(STATE_LENGTH), nullable=False),
    Column("request", String(2 * REQUEST_BYTES)),
)
Index("ix_transitions_subject", transitions_table.c.subject)
Index("ix_transitions_at", transitions_table.c.at)

requests_table = Table(
    "situation_requests",
    metadata,
    Column("request", String(2 * REQUEST_BYTES), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("scenario", String(NAME_LENGTH), nullable=False),
    Column("subject", String(NAME_LENGTH), nullable=False),
    Column("situation", String(NAME_LENGTH)),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("reason", String(REASON_LENGTH), nullable=False),
    Column("state", String(STATE_LENGTH), nullable=False),
    Column("approver", String(ACTOR_LENGTH)),
    Column("settled", Moment),
    Column("trouble", String(TROUBLE_LENGTH), nullable=False),
    # In milliseconds; 0: it is not held.
    Column("hold", BigInteger, nullable=False, server_default="0"),
)
Index("ix_situation_requests_state", requests_table.c.state)


LED_HERE: Final = sa.and_(
    situations_table.c.scenario == transitions_table.c.scenario,
    situations_table.c.subject == transitions_table.c.subject,
    situations_table.c.since == transitions_table.c.at,
)
"""The step by which a subject came to where it stands."""


class Cause(StrEnum):
    """What brought a transition about."""

    DETECTED = "detected"
    MANUAL = "manual"
    TIME = "time"
    """It was held by hand for a time that is over."""
    DURATION = "duration"
    """A situation has lasted for its longest duration."""
    LIMIT = "limit"
    """Too many others are in some situation."""
    DEFINITIONS = "definitions"
    """The scenario, its situation or its subject is no longer defined."""


class State(StrEnum):
    """Where a request stands."""

    OPEN = "open"
    READY = "ready"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Standing:
    """A subject's current situation, since when, and until when somebody holds it by hand."""

    scenario: str
    subject: str
    situation: str
    since: datetime
    held_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A step of the history; None as source or target is inactive.

    `actor`, `approver`, `reason` and `hold` are those of the request, where one brought it about.
    """

    number: int
    at: datetime
    scenario: str
    subject: str
    source: str | None
    target: str | None
    event: str | None
    cause: Cause
    request: str | None = None
    actor: str | None = None
    approver: str | None = None
    reason: str | None = None
    hold: int | None = None

    @property
    def held_until(self) -> datetime | None:
        """Until when no event was to move the subject on."""
        return self.at + timedelta(milliseconds=self.hold) if self.hold else None


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody's wish to put a subject into a situation, or to end it (None).

    With `hold`, in milliseconds, no event is to move the subject for that long.
    """

    request: str
    at: datetime
    scenario: str
    subject: str
    situation: str | None
    actor: str
    reason: str
    state: State
    approver: str | None
    settled: datetime | None
    trouble: str
    hold: int = 0


def as_stored(subject: str) -> str:
    """Return a subject as the tables have it: a text from outside, of any length."""
    if len(subject) <= NAME_LENGTH and subject.isprintable():
        return subject
    digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    shown = "".join(it if it.isprintable() else "?" for it in subject[:64])
    return f"{shown}…{digest}"
