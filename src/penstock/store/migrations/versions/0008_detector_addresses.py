"""Where the gateway that detects events is reached, and how long others go by what it told."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add both to who detects; nobody is reachable, and has told anybody, until it says so."""
    address = sa.Column("address", sa.String(300), nullable=False, server_default="")
    told_for = sa.Column("told_for", sa.Integer(), nullable=False, server_default="0")
    op.add_column("detectors", address)
    op.add_column("detectors", told_for)
