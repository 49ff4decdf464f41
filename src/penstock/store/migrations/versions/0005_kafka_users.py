"""Users of a Kafka cluster, and how far the cluster has followed the definitions."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the tables of users and of progress."""
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
