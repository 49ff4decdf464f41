"""Subscriptions of kept sessions, as the command PERSIST found them."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make their table: nothing was persisted before."""
    op.create_table(
        "persisted_subscriptions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=True),
        sa.Column("options", sa.Integer(), nullable=False),
        sa.Column("identifier", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["client"],
            ["sessions.client"],
            name="fk_persisted_subscriptions_client",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("client", "number", name="pk_persisted_subscriptions"),
    )
