"""Definitions with epochs."""

import time
import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of epochs and revisions, and epoch 0: the empty set."""
    epochs = op.create_table(
        "epochs",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_epochs"),
    )
    op.create_table(
        "revisions",
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("superseded", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["epoch"], ["epochs.epoch"], name="fk_revisions_epoch"),
        sa.ForeignKeyConstraint(["superseded"], ["epochs.epoch"], name="fk_revisions_superseded"),
        sa.PrimaryKeyConstraint("kind", "name", "epoch", name="pk_revisions"),
    )
    op.create_index("ix_revisions_epoch", "revisions", ["epoch"])
    op.create_index("ix_revisions_superseded", "revisions", ["superseded"])
    op.create_index(
        "uq_revisions_current",
        "revisions",
        ["kind", "name"],
        unique=True,
        sqlite_where=sa.text("superseded IS NULL"),
        postgresql_where=sa.text("superseded IS NULL"),
    )
    op.bulk_insert(
        epochs,
        [
            {
                "epoch": 0,
                "mark": uuid.uuid4().hex,
                "at": time.time_ns() // 1000,
                "actor": "penstock",
                "reason": "the store was made",
            }
        ],
    )
