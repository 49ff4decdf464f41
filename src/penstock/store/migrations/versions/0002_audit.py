"""The audit log."""

from hashlib import sha256

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables of entries and heads, the tip of an empty log, and the triggers."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit_entries",
        sa.Column("seq", number, autoincrement=False, nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(28), nullable=True),
        sa.Column("subject", sa.String(28), nullable=True),
        sa.Column("rule", sa.String(256), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_entries"),
    )
    tip = op.create_table(
        "audit_tip",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("kept", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_tip"),
        sa.CheckConstraint("id = 1", name="ck_audit_tip_one_row"),
    )
    op.create_table(
        "audit_heads",
        sa.Column("size", number, autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("size", name="pk_audit_heads"),
    )
    empty = {
        "id": 1,
        "size": 0,
        "frontier": b"",
        "root": sha256(b"").digest(),
        "time": 0,
        "key": "",
        "signature": b"",
        "kept": 0,
    }
    op.bulk_insert(tip, [empty])
    if op.get_bind().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        _guard_sqlite()


def _guard_sqlite() -> None:
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_entries_no_{verb.lower()} BEFORE {verb} ON audit_entries"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION audit_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_entries_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_entries_refuse()"
    )
