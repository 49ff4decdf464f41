"""Where the gateway that detects events is reached by the others."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the address to who detects; nobody is reachable until it is told."""
    op.add_column(
        "detectors", sa.Column("address", sa.String(300), nullable=False, server_default="")
    )
