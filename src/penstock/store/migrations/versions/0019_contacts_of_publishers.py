"""Addresses of people belong to the front end that keeps them: no other one replaces them."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Make the table anew; whose addresses the old ones are, nobody knows."""
    op.drop_table("rights_contacts")
    op.create_table(
        "rights_contacts",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("publisher", sa.String(256), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "publisher", name="pk_rights_contacts"),
    )
