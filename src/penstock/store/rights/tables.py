"""The tables of privacy requests.

    rights_requests   one row for each accepted request; who it is about stands there sealed
    rights_progress   one row for each request and service: status, deadline, what comes next, when
    rights_contacts   where a front end tells a person, sealed
    rights_notices    the outbox: alerts to teams and notes to people that are to be sent

What people chose (`rights_states`, `rights_choices`) is in `store.consent`, which alone writes it.

`next_at` is when a worker has to look at a progress row again: to send, or to see whether it is
overdue. A row with nothing left to do has none: looking for work costs what there is to do.
"""

from __future__ import annotations

from typing import Final

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

from penstock.store.opt_outs import DIGITS
from penstock.store.schema import NAME_LENGTH, Moment, metadata

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
