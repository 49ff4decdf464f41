"""What stays of audit entries that were pruned, and triggers that let pruning alone delete."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_REFUSAL = "the audit log is append-only"
_ALLOWED = (
    "SELECT 1 FROM audit_pruned p JOIN audit_entries e ON e.seq = p.entry"
    " WHERE e.kind = 'audit.pruned'"
)


def upgrade() -> None:
    """Make the tables, and put triggers that look for the checkpoint in place of the old ones."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit_nodes",
        sa.Column("leaf", number, nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("leaf", "level", name="pk_audit_nodes"),
    )
    op.create_table(
        "audit_pruned",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("before", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_pruned"),
        sa.CheckConstraint("id = 1", name="ck_audit_pruned_one_row"),
    )
    op.create_table(
        "audit_witnesses",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_audit_witnesses"),
    )
    if op.get_bind().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        _guard_sqlite()


def _guard_sqlite() -> None:
    op.execute("DROP TRIGGER audit_entries_no_delete")
    op.execute(
        "CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries"
        f" WHEN NOT EXISTS ({_ALLOWED} AND OLD.seq < p.before)"
        f" BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    )


def _guard_postgresql() -> None:
    op.execute("DROP TRIGGER audit_entries_guard ON audit_entries")
    op.execute(
        "CREATE TRIGGER audit_entries_guard BEFORE UPDATE OR TRUNCATE ON audit_entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_entries_refuse()"
    )
    op.execute(
        "CREATE FUNCTION audit_entries_prune() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"  # noqa: S608
        f" IF EXISTS (SELECT 1 FROM gone WHERE NOT EXISTS ({_ALLOWED} AND gone.seq < p.before))"
        f" THEN RAISE EXCEPTION '{_REFUSAL}'; END IF; RETURN NULL; END $$"
    )
    # One look for all rows of a statement; an error undoes it as one before it would prevent it.
    op.execute(
        "CREATE TRIGGER audit_entries_guard_delete AFTER DELETE ON audit_entries"
        " REFERENCING OLD TABLE AS gone FOR EACH STATEMENT"
        " EXECUTE FUNCTION audit_entries_prune()"
    )
