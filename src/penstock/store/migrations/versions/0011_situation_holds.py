"""For how long somebody is to be held in a situation that was set by hand."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add it to requests, in milliseconds; none that was made before holds anybody."""
    hold = sa.Column("hold", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("situation_requests", hold)
