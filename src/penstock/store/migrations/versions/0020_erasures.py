"""Erasure: steps that are done, and the evidence of what was erased."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "rights_erasure_steps",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("step", sa.String(300), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"],
            ["rights_requests.id"],
            name="fk_rights_erasure_steps_request",
        ),
        sa.PrimaryKeyConstraint("request", "step", name="pk_rights_erasure_steps"),
    )
    op.create_table(
        "rights_evidence",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_evidence_request"
        ),
        sa.PrimaryKeyConstraint("request", "subscriber", name="pk_rights_evidence"),
    )
