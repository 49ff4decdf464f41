"""Steps of the tables of definitions and users, and of secrets: Kafka, the vault, access tokens."""

import time
import uuid

import sqlalchemy as sa
from alembic import op


def make_revisions() -> None:
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


def make_kafka_users() -> None:
    """Make the tables of users, and of how far the cluster has followed the definitions."""
    op.create_table(
        "kafka_users",
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("mechanism", sa.String(32), nullable=True),
        sa.Column("iterations", sa.Integer(), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("applied", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_kafka_users"),
    )
    op.create_table(
        "kafka_progress",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.String(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=True),
        sa.Column("trouble", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kafka_progress"),
    )


def make_vault() -> None:
    """Make the tables of sealed originals, and of why some were turned back."""
    op.create_table(
        "vault_entries",
        sa.Column("vault", sa.String(256), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("vault", "token", name="pk_vault_entries"),
    )
    op.create_table(
        "disclosures",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("view", sa.String(256), nullable=False),
        sa.Column("field", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.PrimaryKeyConstraint("request", name="pk_disclosures"),
    )


def make_access_tokens() -> None:
    """Make the table of access tokens: the hash of each, whose it is, when it ends."""
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user", sa.String(256), nullable=False),
        sa.Column("note", sa.String(100), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_access_tokens"),
    )
    op.create_index("ix_access_tokens_user", "access_tokens", ["user"])
