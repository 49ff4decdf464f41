"""The tables of sessions: how a subscription is noted in them, how many are kept for somebody.

Rules that hold here:
- The digest of a client identifier is the key of a row: it may be larger than an index takes.
  The identifier itself stands there while its client is away. Addresses appear as pseudonyms only.
- `PAUSED` stands beside the options of a subscription that the broker was told to end for now.
- A negative number: the subscription has ended, and the broker is still to be told.
- Sessions count for their user; those of anonymous clients, who are all one principal, for the
  address at which they began. Addresses come hidden.
- Who counts in the transaction that adds a session counts right: writers of sessions come one
  after another, at all gateways of a store.
- A session counts until it ends, whether its client is connected or not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from penstock.errors import PenstockError
from penstock.store.schema import Moment, metadata

AREA = "sessions"
PAUSED = 0x100

# A client identifier has up to 65,535 bytes, more than an index takes: its digest is the key.
DIGEST_LENGTH = 64
PRINCIPAL_LENGTH = 256
HOLDER_LENGTH = 32
PURPOSE_LENGTH = 256
ADDRESS_LENGTH = 64

sessions_table = Table(
    "sessions",
    metadata,
    Column("client", String(DIGEST_LENGTH), primary_key=True),
    Column("principal", String(PRINCIPAL_LENGTH), nullable=False),
    Column("holder", String(HOLDER_LENGTH), nullable=False),
    Column("last_number", BigInteger, nullable=False),
    Column("expires", Moment, index=True),
    # Only of anonymous clients, all of whom are one principal.
    Column("address", String(ADDRESS_LENGTH), nullable=False, server_default=""),
    # The client identifier, of a client that left and has not come back: erasure needs it.
    Column("away", Text),
)
Index("ix_sessions_principal_address", sessions_table.c.principal, sessions_table.c.address)


def subscription_columns() -> tuple[Column[Any], ...]:
    """Return the columns of a table of subscriptions."""
    return (
        Column(
            "client",
            String(DIGEST_LENGTH),
            ForeignKey(sessions_table.c.client, ondelete="CASCADE"),
            primary_key=True,
        ),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("filter", Text, nullable=False),
        Column("purpose", String(PURPOSE_LENGTH)),
        Column("options", Integer, nullable=False),
        Column("identifier", BigInteger, nullable=False),
        # What events it is for, an expression; none: all.
        Column("content", Text),
    )


subscriptions_table = Table("session_subscriptions", metadata, *subscription_columns())


def digest(client_id: str) -> str:
    """Return the key of a client identifier."""
    return hashlib.sha256(client_id.encode()).hexdigest()


class SessionQuotaError(PenstockError):
    """Somebody has as many sessions as they may have."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"as many sessions as allowed are kept for you: {most}",
            fix="end one that you have, or connect without keeping the session",
        )


@dataclass(frozen=True, slots=True)
class SessionQuotas:
    """How many sessions there may be."""

    per_user: int = 1 << 30
    per_address: int = 1 << 30
    """Of anonymous clients."""

    def check(self, connection: Connection, principal: str, address: str, now: datetime) -> None:
        """Refuse one more session of a user, or of an anonymous client's address."""
        most = self.per_address if address else self.per_user
        table = sessions_table.c
        theirs = (table.principal == principal, table.address == address, _is_kept(now))
        query = sa.select(sa.func.count()).select_from(sessions_table).where(*theirs)
        if connection.execute(query).scalar_one() >= most:
            raise SessionQuotaError(most)


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """How many sessions are kept, for how many users and addresses, and the most for one."""

    kept: int
    owners: int
    most: int


def count_sessions(connection: Connection, now: datetime) -> SessionCounts:
    """Count the sessions that are kept."""
    owner = (sessions_table.c.principal, sessions_table.c.address)
    each = sa.select(sa.func.count().label("held")).where(_is_kept(now)).group_by(*owner)
    held = each.subquery().c.held
    query = sa.select(sa.func.sum(held), sa.func.count(), sa.func.max(held))
    kept, owners, most = connection.execute(query).one()
    return SessionCounts(int(kept or 0), owners, most or 0)


def _is_kept(now: datetime) -> ColumnElement[bool]:
    ends = sessions_table.c.expires
    return sa.or_(ends.is_(None), ends > now)
