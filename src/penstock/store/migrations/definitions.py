"""Steps of the tables of definitions and users, of their audit log, and of secrets they need."""

from __future__ import annotations

import time
import uuid
from hashlib import sha256

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


_REFUSAL = "the audit log is append-only"
_ALLOWED = (
    "SELECT 1 FROM audit_pruned p JOIN audit_entries e ON e.seq = p.entry"
    " WHERE e.kind = 'audit.pruned'"
)


def make_log() -> None:
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
        _refuse_changes_on_postgresql()
    else:
        _refuse_changes_on_sqlite()


def _refuse_changes_on_sqlite() -> None:
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_entries_no_{verb.lower()} BEFORE {verb} ON audit_entries"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )


def _refuse_changes_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION audit_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_entries_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_entries_refuse()"
    )


def make_pruning() -> None:
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
        _let_pruning_delete_on_postgresql()
    else:
        _let_pruning_delete_on_sqlite()


def _let_pruning_delete_on_sqlite() -> None:
    op.execute("DROP TRIGGER audit_entries_no_delete")
    op.execute(
        "CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries"
        f" WHEN NOT EXISTS ({_ALLOWED} AND OLD.seq < p.before)"
        f" BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    )


def _let_pruning_delete_on_postgresql() -> None:
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
