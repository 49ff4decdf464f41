"""The tables of the audit log, and their reader: entries, heads, and the hashes for proofs.

Reading needs no key. What is read is taken as it stands; `verification` is what
compares it with the signatures.

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
- Somebody may have tampered with what is read. In SQLite any column can hold any type,
  so values come without SQLAlchemy's conversions, which would trust them: `bytes(n)` of
  a number instead of a hash would fill the memory.
- The hashes of pruned entries are found in `audit_nodes`, as far as anything needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from penstock.errors import UsageError
from penstock.store.audit.entry import Entry, Outcome, as_document, encode
from penstock.store.audit.merkle import HASH_SIZE, Frontier, TreeNode, hash_leaf
from penstock.store.audit.signatures import Head, TamperedError
from penstock.store.database import Database
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


PAGE = 10_000
_TEXT = (str, type(None))
_NUMBER = (int, type(None))
_AT_ONCE = 5_000  # parameters of a statement: databases take more


def raw(table: sa.Table, *names: str) -> list[sa.ColumnElement[Any]]:
    """Return columns as the database has them, without a conversion that would trust them."""
    chosen = [table.c[name] for name in names] if names else list(table.c)
    return [sa.type_coerce(column, sa.types.NullType()) for column in chosen]


_ENTRY = raw(entries)
_HEAD = raw(heads)
_TIP = raw(tip, "size", "frontier", "root", "time", "key", "signature", "kept")


class Recorded(NamedTuple):
    """An entry in its place in the log, with the hashes kept beside it."""

    seq: int
    entry: Entry
    hashes: Any  # bytes, unless somebody tampered with them

    def as_document(self) -> dict[str, Any]:
        """Return the entry as JSON data."""
        return as_document(self.seq, self.entry)

    def leaf_hash(self) -> bytes | None:
        """Hash the entry as it stands; None where it is nothing that could have been appended."""
        entry = self.entry
        needed = (type(entry.time), type(entry.kind), type(entry.outcome), type(entry.details))
        if (
            needed != (int, str, str, str)
            or type(entry.actor) not in _TEXT
            or type(entry.subject) not in _TEXT
            or type(entry.rule) not in _TEXT
            or type(entry.epoch) not in _NUMBER
        ):
            return None
        try:
            # `details` stands in the hashed bytes as it is: any other text gives another hash.
            return hash_leaf(encode(self.seq, entry))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries to read; empty fields let everything pass."""

    kinds: Sequence[str] = ()
    outcomes: Sequence[Outcome] = ()
    people: Sequence[str] = ()  # pseudonyms, as actor or as subject
    before: int | None = None  # the number of an entry: only those that came earlier

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return what to put behind WHERE."""
        found: list[sa.ColumnElement[bool]] = []
        if self.kinds:
            found.append(entries.c.kind.in_(self.kinds))
        if self.outcomes:
            found.append(entries.c.outcome.in_([one.value for one in self.outcomes]))
        if self.people:
            found.append(entries.c.actor.in_(self.people) | entries.c.subject.in_(self.people))
        if self.before is not None:
            found.append(entries.c.seq < self.before)
        return found


@dataclass(frozen=True, slots=True)
class Tip:
    """The one row that appending continues from."""

    size: int
    frontier: bytes
    root: bytes
    time: int
    key: str
    signature: bytes
    kept: int

    @property
    def head(self) -> Head:
        """The newest signed head; of an empty log it has no signature."""
        return Head(self.size, self.root, self.time, self.key, self.signature)

    def edge(self) -> Frontier:
        """Return the right edge of the tree, after checking it against the root."""
        try:
            edge = Frontier.read(self.size, self.frontier)
        except UsageError:
            edge = None
        if edge is None or edge.root() != self.root:
            raise TamperedError(
                f"the right edge of the log does not lead to its root at {self.size}"
            )
        return edge


def read_tip(connection: Connection) -> Tip:
    """Read the tip; it is missing only where somebody removed it."""
    row = connection.execute(sa.select(*_TIP)).first()
    if row is None:
        raise TamperedError("the tip of the audit log is missing")
    if [type(value) for value in row] != [int, bytes, bytes, int, str, bytes, int] or row[0] < 0:
        raise TamperedError("the tip of the audit log is unreadable")
    return Tip(*row)


def read_heads(connection: Connection) -> list[Head]:
    """Read the older heads that are kept in the database, by size."""
    return [Head(*row) for row in connection.execute(sa.select(*_HEAD).order_by(heads.c.size))]


def read_after(
    connection: Connection, seq: int, limit: int = PAGE, only: Filter | None = None
) -> list[Recorded]:
    """Read the first entries behind `seq` (-1 for the beginning)."""
    asked = sa.select(*_ENTRY).where(entries.c.seq > seq, *(only or Filter()).conditions())
    return _recorded(connection.execute(asked.order_by(entries.c.seq).limit(limit)))


def read_last(connection: Connection, limit: int, only: Filter | None = None) -> list[Recorded]:
    """Read the last entries, the oldest of them first."""
    asked = sa.select(*_ENTRY).where(*(only or Filter()).conditions())
    return _recorded(connection.execute(asked.order_by(entries.c.seq.desc()).limit(limit)))[::-1]


def read_one(connection: Connection, seq: int) -> Recorded | None:
    """Read one entry by its number."""
    found = _recorded(connection.execute(sa.select(*_ENTRY).where(entries.c.seq == seq)))
    return found[0] if found else None


def _recorded(result: sa.CursorResult[*tuple[Any, ...]]) -> list[Recorded]:
    return [Recorded(row[0], Entry(*row[1:9]), row[9]) for row in result.all()]


def read_nodes(connection: Connection, wanted: Iterable[TreeNode]) -> dict[TreeNode, bytes]:
    """Read the hashes of these nodes: with the entries that completed them, or kept of pruned."""
    found: dict[TreeNode, bytes] = {}
    left = list(wanted)
    for start in range(0, len(left), _AT_ONCE):
        found |= _read_nodes(connection, left[start : start + _AT_ONCE])
    return found


def _read_nodes(connection: Connection, some: Sequence[TreeNode]) -> dict[TreeNode, bytes]:
    leaves = {node.leaf for node in some}
    asked = sa.select(*raw(entries, "seq", "hashes")).where(entries.c.seq.in_(leaves))
    kept = {seq: hashes for seq, hashes in connection.execute(asked) if isinstance(hashes, bytes)}
    found = {}
    for node in some:
        start = node.level * HASH_SIZE
        part = kept.get(node.leaf, b"")[start : start + HASH_SIZE]
        if len(part) == HASH_SIZE:
            found[node] = part
    if missing := [node for node in some if node not in found]:
        rest = read_kept_nodes(connection, missing)
        for node in missing:
            if node not in rest:
                raise TamperedError(
                    f"entry {node.leaf} or the hashes kept with it are missing",
                    fix="run `penstock audit verify`",
                )
        found |= rest
    return found


def read_kept_nodes(connection: Connection, some: Iterable[TreeNode]) -> dict[TreeNode, bytes]:
    """Read those of these nodes that are kept of pruned entries."""
    by_key = {(node.leaf, node.level): node for node in some}
    asked = sa.select(*raw(nodes)).where(nodes.c.leaf.in_({leaf for leaf, _ in by_key}))
    return {
        by_key[leaf, level]: value
        for leaf, level, value in connection.execute(asked)
        if (leaf, level) in by_key and isinstance(value, bytes) and len(value) == HASH_SIZE
    }


class Checkpoint(NamedTuple):
    """Up to where entries were pruned, and the entry that says so; not to be believed unseen."""

    before: int = 0
    entry: int = -1


def read_checkpoint(connection: Connection) -> Checkpoint:
    """Read up to where entries were pruned."""
    row = connection.execute(sa.select(*raw(pruned, "before", "entry"))).first()
    if row is None:
        return Checkpoint()
    if [type(value) for value in row] != [int, int] or not 0 < row[0] <= row[1]:
        raise TamperedError("the checkpoint of what was pruned is unreadable")
    return Checkpoint(*row)


def read_bounds(connection: Connection) -> tuple[Any, Any, Any, Any]:
    """Read, at one moment: size of the tip, number of entries, first and last `seq`."""
    asked = sa.select(
        sa.select(*raw(tip, "size")).limit(1).scalar_subquery(),
        sa.select(sa.func.count()).select_from(entries).scalar_subquery(),
        sa.select(sa.func.min(*raw(entries, "seq"))).scalar_subquery(),
        sa.select(sa.func.max(*raw(entries, "seq"))).scalar_subquery(),
    )
    size, count, first, last = connection.execute(asked).one()
    return size, count, first, last


def newest_head(database: Database) -> Head | None:
    """Return the newest head; None where the log is empty."""
    with database.read() as connection:
        found = read_tip(connection).head
    return found if found.size else None
