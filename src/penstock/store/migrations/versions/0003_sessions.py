"""Sessions of MQTT clients."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables of sessions and of their subscriptions."""
    op.create_table(
        "sessions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(256), nullable=False),
        sa.Column("last_number", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("client", name="pk_sessions"),
    )
    op.create_index("ix_sessions_expires", "sessions", ["expires"])
    op.create_table(
        "session_subscriptions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=True),
        sa.Column("options", sa.Integer(), nullable=False),
        sa.Column("identifier", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["client"],
            ["sessions.client"],
            name="fk_session_subscriptions_client",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("client", "number", name="pk_session_subscriptions"),
    )
