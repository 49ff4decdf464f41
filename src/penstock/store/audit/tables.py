"""The tables of the audit log; migrations 0002 and 0012 make them, with their triggers.

Rules that hold here:
- Entries are inserted and never updated. They are deleted by pruning alone: the triggers let
  only those go that are before a checkpoint whose entry is in the log, so that a mistake of
  ours cannot do it either. Against an attacker with the database there are signatures.
- `hashes` of an entry holds its leaf hash and the hashes of the subtrees it completes,
  32 bytes each (see `merkle`): the tree lives in the entries.
- `audit_tip` is one row: the right edge and the newest signed head. Appending locks and
  replaces it in the transaction that inserts the entries.
- `audit_heads` keeps an older head now and then.
- `audit_pruned` is no row, or one: up to where entries were pruned, and the entry that says so.
  `audit_nodes` keeps what the tree still needs of them, each node under the last leaf below it.
- `audit_witnesses` says at which sizes heads are kept outside the database, so that pruning
  keeps what connects them with the log.
- No column but `seq` is indexed. An index by person would dirty a page of its own for
  nearly every entry, which costs more than the whole rest of appending; looking for a
  person reads the log from end to end instead.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from penstock.store.schema import metadata

# SQLite numbers its rows itself only where the type is exactly INTEGER.
_Number = BigInteger().with_variant(Integer(), "sqlite")

entries = Table(
    "audit_entries",
    metadata,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("actor", String(28)),
    Column("subject", String(28)),
    Column("rule", String(256)),
    Column("epoch", BigInteger),
    Column("details", Text, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
)

tip = Table(
    "audit_tip",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("frontier", LargeBinary, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("key", String(32), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("kept", BigInteger, nullable=False),  # time of the last head in `audit_heads`
)

heads = Table(
    "audit_heads",
    metadata,
    Column("size", _Number, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("key", String(32), nullable=False),
    Column("signature", LargeBinary, nullable=False),
)

nodes = Table(
    "audit_nodes",
    metadata,
    Column("leaf", _Number, primary_key=True, autoincrement=False),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
)

pruned = Table(
    "audit_pruned",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("before", BigInteger, nullable=False),
    Column("entry", BigInteger, nullable=False),
)

witnesses = Table(
    "audit_witnesses",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
)
