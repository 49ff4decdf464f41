"""Opt-outs of purposes: every change of mind, and what the key behind them is known by."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the tables of changes and of the key."""
    op.create_table(
        "consent_changes",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=False),
        sa.Column("choice", sa.String(8), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_consent_changes"),
    )
    op.create_index("ix_consent_changes_subject_purpose", "consent_changes", ["subject", "purpose"])
    op.create_table(
        "consent_key",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consent_key"),
    )
