"""What is kept of privacy requests: their tables, how progress moves, how people's data is sealed.

    rights_requests   one row for each accepted request; who it is about stands there sealed
    rights_progress   one row for each request and service: status, deadline, what comes next, when
    rights_contacts   where a front end tells a person, sealed
    rights_notices    the outbox: alerts to teams and notes to people that are to be sent

    INIT ──sent──▶ SENT ──acknowledged──▶ ACKNOWLEDGED ──completed──▶ COMPLETED
      │              │                         │                         ▲
      │ gave_up      │ expired                 │ expired                 │ completed, late
      ▼              ▼                         ▼                         │
    SENDFAILED     FAILED ◀────────────────────┘ ────────────────────────┘

What people chose (`rights_states`, `rights_choices`) is in `store.consent`, which alone writes it.

Rules that hold here:
- `next_at` is when a worker has to look at a progress row again: to send, or to see whether it is
  overdue. A row with nothing left to do has none: looking for work costs what there is to do.
- Statuses never go backwards by themselves. A service that is told again stays where it is; what
  comes late or twice changes nothing, except that a completion always counts. Only a person
  begins a failed one anew (`redriven`).
- A request is completed when all its services have completed it; it has failed in part as soon
  as one has failed, whatever the others do, until that one completes late or is begun anew.
- Identifiers and addresses are sealed: AES-256-GCM under a key derived from the key of consent,
  with a random nonce for each value. The column and the row are part of what is authenticated: a
  value that is moved opens nothing. What cannot be opened is reported as such, and never quoted.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from penstock.errors import UnavailableError
from penstock.store.opt_outs import DIGITS
from penstock.store.schema import NAME_LENGTH, Moment, metadata

_NONCE: Final = 12


class SealBrokenError(UnavailableError):
    """A sealed value is not what was sealed here."""


class Sealer:
    """Seals and opens texts under one key."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(secret, b"penstock rights sealing", "sha256"))

    def seal(self, text: str, place: str) -> bytes:
        """Return a text sealed for its place."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, text.encode(), place.encode())

    def open(self, sealed: bytes, place: str) -> str:
        """Return the text that was sealed for this place."""
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode())
        except (InvalidTag, ValueError):
            raise SealBrokenError(
                "a sealed value of a privacy request cannot be opened",
                fix="bring the file back that consent.key names; if it is the right one, the "
                "database was tampered with",
            ) from None
        return plain.decode()


class ProgressStatus(StrEnum):
    """How far one service is."""

    INIT = "INIT"
    SENT = "SENT"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    COMPLETED = "COMPLETED"
    SENDFAILED = "SENDFAILED"
    FAILED = "FAILED"


class ProgressEvent(StrEnum):
    """What can happen to a progress."""

    SENT = "sent"
    GAVE_UP = "gave_up"
    ACKNOWLEDGED = "acknowledged"
    COMPLETED = "completed"
    EXPIRED = "expired"
    REDRIVEN = "redriven"


class RequestStatus(StrEnum):
    """How far a request is as a whole."""

    INIT = "INIT"
    INPROGRESS = "INPROGRESS"
    COMPLETED = "COMPLETED"
    SOMEFAILED = "SOMEFAILED"


_S, _E = ProgressStatus, ProgressEvent

TRANSITIONS: Final[Mapping[tuple[ProgressStatus, ProgressEvent], ProgressStatus]] = (
    MappingProxyType(
        {
            (_S.INIT, _E.SENT): _S.SENT,
            (_S.INIT, _E.GAVE_UP): _S.SENDFAILED,
            # A service may answer before the sender has noted that it sent.
            (_S.INIT, _E.ACKNOWLEDGED): _S.ACKNOWLEDGED,
            (_S.SENT, _E.ACKNOWLEDGED): _S.ACKNOWLEDGED,
            (_S.SENT, _E.EXPIRED): _S.FAILED,
            (_S.SENT, _E.GAVE_UP): _S.SENDFAILED,
            (_S.ACKNOWLEDGED, _E.EXPIRED): _S.FAILED,
            (_S.ACKNOWLEDGED, _E.GAVE_UP): _S.FAILED,
            (_S.SENDFAILED, _E.REDRIVEN): _S.INIT,
            (_S.FAILED, _E.REDRIVEN): _S.INIT,
            **{(status, _E.COMPLETED): _S.COMPLETED for status in _S},
        }
    )
)
OPEN: Final = frozenset({_S.INIT, _S.SENT, _S.ACKNOWLEDGED})
LOST: Final = frozenset({_S.SENDFAILED, _S.FAILED})


def advance(status: ProgressStatus, event: ProgressEvent) -> ProgressStatus:
    """Return the status after an event; what has no transition changes nothing."""
    return TRANSITIONS.get((status, event), status)


def sum_up(statuses: Iterable[ProgressStatus]) -> RequestStatus:
    """Return how far a request is, from how far its services are."""
    found = set(statuses)
    if found <= {_S.COMPLETED}:
        return RequestStatus.COMPLETED
    if found & LOST:
        return RequestStatus.SOMEFAILED
    return RequestStatus.INIT if found == {_S.INIT} else RequestStatus.INPROGRESS


ID_LENGTH: Final = 32
KEY_LENGTH: Final = 128
STATUS_LENGTH: Final = 16
CODE_LENGTH: Final = 64

requests_table = Table(
    "rights_requests",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("publisher", String(NAME_LENGTH), nullable=False),
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    Column("control", String(NAME_LENGTH), nullable=False),
    Column("action", String(STATUS_LENGTH), nullable=False),
    Column("categories", Text, nullable=False),
    Column("subject", String(DIGITS), nullable=False),
    Column("sealed", LargeBinary),
    Column("status", String(STATUS_LENGTH), nullable=False),
    Column("at", Moment, nullable=False),
    Column("finished", Moment),
    Column("epoch", BigInteger, nullable=False),
    Column("notify", Text, nullable=False, server_default="[]"),
    UniqueConstraint("publisher", "idempotency_key"),
    Index("ix_rights_requests_subject", "subject"),
    Index("ix_rights_requests_at", "at"),
    Index("ix_rights_requests_publisher_at", "publisher", "at"),
)

progress_table = Table(
    "rights_progress",
    metadata,
    Column("request", String(ID_LENGTH), ForeignKey(requests_table.c.id), primary_key=True),
    Column("subscriber", String(NAME_LENGTH), primary_key=True),
    Column("status", String(STATUS_LENGTH), nullable=False),
    Column("action", String(8), nullable=False),
    Column("next_at", Moment),
    Column("deadline", Moment),
    Column("attempts", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("holder", String(ID_LENGTH)),
    Column("leased_until", Moment),
    Column("trouble", String(CODE_LENGTH), nullable=False),
    Column("updated", Moment, nullable=False),
    # When it had to be done at first, whatever deadlines came later; and when it was.
    Column("due", Moment),
    Column("completed", Moment),
    Index("ix_rights_progress_action_next_at", "action", "next_at"),
    Index("ix_rights_progress_subscriber", "subscriber", "status"),
)

contacts_table = Table(
    "rights_contacts",
    metadata,
    Column("subject", String(DIGITS), primary_key=True),
    Column("publisher", String(NAME_LENGTH), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("at", Moment, nullable=False),
)

notices_table = Table(
    "rights_notices",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("channel", String(16), nullable=False),
    Column("request", String(ID_LENGTH), ForeignKey(requests_table.c.id), nullable=False),
    Column("subscriber", String(NAME_LENGTH), nullable=False),
    Column("address", LargeBinary),
    Column("next_at", Moment),
    Column("attempts", Integer, nullable=False),
    Column("holder", String(ID_LENGTH)),
    Column("leased_until", Moment),
    Column("trouble", String(CODE_LENGTH), nullable=False),
    Column("at", Moment, nullable=False),
    Column("sent", Moment),
    Index("ix_rights_notices_next_at", "next_at"),
    Index("ix_rights_notices_request", "request"),
)
