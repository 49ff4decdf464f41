"""Wills that gateways keep, and which gateways keep them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the tables of wills and of their keepers."""
    op.create_table(
        "will_keepers",
        sa.Column("keeper", sa.String(32), nullable=False),
        sa.Column("place", sa.String(256), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("keeper", name="pk_will_keepers"),
    )
    op.create_table(
        "wills",
        sa.Column("number", sa.String(32), nullable=False),
        sa.Column("keeper", sa.String(32), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(256), nullable=False),
        sa.Column("expiry", sa.BigInteger(), nullable=False),
        sa.Column("packet", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_wills"),
    )
    op.create_index("ix_wills_keeper", "wills", ["keeper"])
    op.create_index("ix_wills_client", "wills", ["client"])
