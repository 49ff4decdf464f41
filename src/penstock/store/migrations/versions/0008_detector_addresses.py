"""Where the gateway that detects events is reached by the others, and whether it told them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the address to who detects; nobody is reachable until it is told."""
    address = sa.Column("address", sa.String(300), nullable=False, server_default="")
    told: sa.Column[bool] = sa.Column(
        "told", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("detectors", address)
    op.add_column("detectors", told)
