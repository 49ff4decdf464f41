"""Situations of emergency scenarios: their detection, their history, requests by hand."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the tables of detection, situations, transitions and requests."""
    op.create_table(
        "detectors",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("place", sa.String(256), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.Column("trouble", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detectors"),
    )
    op.create_table(
        "detection_snapshots",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("through", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detection_snapshots"),
    )
    op.create_table(
        "detection_steps",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", "number", name="pk_detection_steps"),
    )
    op.create_table(
        "situations",
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("situation", sa.String(256), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scenario", "subject", name="pk_situations"),
    )
    op.create_table(
        "transitions",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("source", sa.String(256), nullable=True),
        sa.Column("target", sa.String(256), nullable=True),
        sa.Column("event", sa.String(256), nullable=True),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("request", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("number", name="pk_transitions"),
    )
    op.create_index("ix_transitions_subject", "transitions", ["subject"])
    op.create_index("ix_transitions_at", "transitions", ["at"])
    op.create_table(
        "situation_requests",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("situation", sa.String(256), nullable=True),
        sa.Column("actor", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("approver", sa.String(256), nullable=True),
        sa.Column("settled", sa.BigInteger(), nullable=True),
        sa.Column("trouble", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("request", name="pk_situation_requests"),
    )
    op.create_index("ix_situation_requests_state", "situation_requests", ["state"])
