"""Privacy requests: the outbox of notices, who is notified, and when a service had to be done."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Make the outbox; let requests and progress say more."""
    op.add_column(
        "rights_requests", sa.Column("notify", sa.Text(), nullable=False, server_default="[]")
    )
    op.add_column("rights_progress", sa.Column("due", sa.BigInteger()))
    op.add_column("rights_progress", sa.Column("completed", sa.BigInteger()))
    op.drop_index("ix_rights_progress_next_at", "rights_progress")
    op.create_index("ix_rights_progress_action_next_at", "rights_progress", ["action", "next_at"])
    op.create_table(
        "rights_notices",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("channel", sa.String(16), nullable=False),
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("address", sa.LargeBinary()),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(32)),
        sa.Column("leased_until", sa.BigInteger()),
        sa.Column("trouble", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_rights_notices"),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_notices_request"
        ),
    )
    op.create_index("ix_rights_notices_next_at", "rights_notices", ["next_at"])
    op.create_index("ix_rights_notices_request", "rights_notices", ["request"])
