"""Privacy requests: requests, progress at each service, people's choices and addresses."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Make the tables of requests, progress, states and contacts."""
    op.create_table(
        "rights_requests",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("publisher", sa.String(256), nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=False),
        sa.Column("control", sa.String(256), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("categories", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rights_requests"),
        sa.UniqueConstraint(
            "publisher", "idempotency_key", name="uq_rights_requests_publisher_idempotency_key"
        ),
    )
    op.create_index("ix_rights_requests_subject", "rights_requests", ["subject"])
    op.create_index("ix_rights_requests_at", "rights_requests", ["at"])
    op.create_table(
        "rights_progress",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("action", sa.String(8), nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("deadline", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(32)),
        sa.Column("leased_until", sa.BigInteger()),
        sa.Column("trouble", sa.String(64), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request", "subscriber", name="pk_rights_progress"),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_progress_request"
        ),
    )
    op.create_index("ix_rights_progress_next_at", "rights_progress", ["next_at"])
    op.create_index("ix_rights_progress_subscriber", "rights_progress", ["subscriber", "status"])
    op.create_table(
        "rights_states",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("control", sa.String(256), nullable=False),
        sa.Column("category", sa.String(256), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "control", "category", name="pk_rights_states"),
    )
    op.create_table(
        "rights_contacts",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_rights_contacts"),
    )
