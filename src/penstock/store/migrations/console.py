"""Tables of the console: who is signed in, and one-time links."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def make_sessions() -> None:
    """Make the tables of sessions and links."""
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user", sa.String(256), nullable=False),
        sa.Column("proof", sa.String(64), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_console_sessions"),
    )
    op.create_index("ix_console_sessions_user", "console_sessions", ["user"])
    op.create_table(
        "console_links",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_console_links"),
    )
