"""The vault of sealed originals, and why some were turned back."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the tables of the vault and of disclosures."""
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
