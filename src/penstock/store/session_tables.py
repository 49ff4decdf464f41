"""The tables of sessions, and how a subscription is noted in them.

Rules that hold here:
- Rows go by the digest of a client identifier: the identifier may be larger than an index takes.
  Addresses appear as pseudonyms only.
- `PAUSED` stands beside the options of a subscription that the broker was told to end for now.
- A negative number: the subscription has ended, and the broker is still to be told.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from penstock.store.schema import Moment, metadata

AREA = "sessions"
PAUSED = 0x100

# A client identifier has up to 65,535 bytes, more than an index takes: rows go by its digest.
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
)
Index("ix_sessions_principal_address", sessions_table.c.principal, sessions_table.c.address)

subscriptions_table = Table(
    "session_subscriptions",
    metadata,
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
)


def digest(client_id: str) -> str:
    """Return the key of a client identifier."""
    return hashlib.sha256(client_id.encode()).hexdigest()
