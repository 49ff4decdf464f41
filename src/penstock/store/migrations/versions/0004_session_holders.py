"""The connection that holds a session."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Give sessions a holder; those there are have none until they are taken up again."""
    holder = sa.Column("holder", sa.String(32), nullable=False, server_default="")
    op.add_column("sessions", holder)
