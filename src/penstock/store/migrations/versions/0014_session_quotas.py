"""Whom kept sessions are counted for, and an end for those that had none."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_WEEK = 7 * 86_400


def upgrade() -> None:
    """Add the address of anonymous clients, hidden; sessions without an end get one in a week."""
    address = sa.Column("address", sa.String(64), nullable=False, server_default="")
    op.add_column("sessions", address)
    op.create_index("ix_sessions_principal_address", "sessions", ["principal", "address"])
    sessions = sa.table("sessions", sa.column("expires", sa.BigInteger()))
    ends = int((time.time() + _WEEK) * 1_000_000)
    op.execute(sessions.update().where(sessions.c.expires.is_(None)).values(expires=ends))
