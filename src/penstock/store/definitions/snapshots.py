"""Whole sets of definitions, read from the database as they stood at one epoch.

Rules that hold here:
- A snapshot is one moment: it holds everything up to its epoch and nothing after it.
- Whoever holds a snapshot loads only what changed since, if the database still has the
  epoch that the snapshot came from. A restored or replaced database is loaded whole.
- Nobody changes a snapshot, nor the bodies in it: many readers share them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UnavailableError, UsageError
from penstock.model.document import Document, Key
from penstock.store.schema import epochs, revisions
from penstock.telemetry.health import Figures

# Statements are made once: making one costs more than SQLite takes to answer it.
_MARKS = sa.select(epochs.c.epoch, epochs.c.mark).where(
    sa.or_(
        epochs.c.epoch == sa.select(sa.func.max(epochs.c.epoch)).scalar_subquery(),
        epochs.c.epoch == sa.bindparam("asked"),
    )
)
_REVISIONS = sa.select(revisions.c.kind, revisions.c.name, revisions.c.body).where(
    sa.or_(revisions.c.superseded.is_(None), revisions.c.superseded > sa.bindparam("at"))
)
_REVISIONS_SINCE = _REVISIONS.where(
    revisions.c.epoch > sa.bindparam("since"), revisions.c.epoch <= sa.bindparam("at")
)
_REVISIONS_AT = _REVISIONS.where(
    # The sum keeps SQLite from walking the index of epochs, that is through all history.
    revisions.c.epoch + 0 <= sa.bindparam("at"),
    revisions.c.body.is_not(None),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The documents of one epoch; `mark` tells it from the same epoch of another history."""

    epoch: int
    mark: str
    documents: Mapping[Key, Document]

    def copy_documents(self) -> dict[Key, Document]:
        """Return the documents in a dict of one's own."""
        held = self.documents
        # A view copies its dict as it is; `dict(view)` would hash every key again.
        return held.copy() if isinstance(held, MappingProxyType) else dict(held)


class Update(NamedTuple):
    """A snapshot, and the keys that may differ from the one held before."""

    snapshot: Snapshot
    changed: frozenset[Key]
    is_other_history: bool = False
    """Whether the store does not know the one held before: it was replaced or set back."""


def load_current(connection: Connection, held: Snapshot | None = None) -> Update:
    """Load the current set; with a snapshot in hand, load only what changed since."""
    marks = _read_marks(connection, held.epoch if held else -1)
    epoch = max(marks)
    if held is None or marks.get(held.epoch) != held.mark:
        documents = _load_documents(connection, epoch)
        changed = frozenset(documents) | frozenset(held.documents if held else ())
        made = _snapshot(epoch, marks[epoch], documents)
        return Update(made, changed, is_other_history=held is not None)
    if epoch == held.epoch:
        return Update(held, frozenset())
    documents = held.copy_documents()
    rows = connection.execute(_REVISIONS_SINCE, {"since": held.epoch, "at": epoch}).all()
    for kind, name, body in rows:
        if body is None:
            documents.pop(Key(kind, name), None)
        else:
            documents[Key(kind, name)] = read_document(kind, name, body)
    changed = frozenset(Key(kind, name) for kind, name, _ in rows)
    return Update(_snapshot(epoch, marks[epoch], documents), changed)


def load_at(connection: Connection, epoch: int) -> Snapshot:
    """Load the set as it stood at an epoch."""
    marks = _read_marks(connection, epoch)
    if epoch not in marks:
        raise UsageError(f"there is no epoch {epoch}", fix=f"choose one from 0 to {max(marks)}")
    return _snapshot(epoch, marks[epoch], _load_documents(connection, epoch))


def read_document(kind: str, name: str, body: str) -> Document:
    """Make a document of what the store holds."""
    return Document(kind, name, json.loads(body))


def describe_age(epoch: int | None, age: float | None) -> Figures:
    """Return the newest epoch that the store confirmed, and how long ago; nothing where none."""
    return {} if epoch is None or age is None else {"epoch": epoch, "age_seconds": round(age, 3)}


def _snapshot(epoch: int, mark: str, documents: dict[Key, Document]) -> Snapshot:
    return Snapshot(epoch, mark, MappingProxyType(documents))


def _read_marks(connection: Connection, epoch: int) -> dict[int, str]:
    """Read the newest epoch and the one asked for, each with its mark."""
    rows = connection.execute(_MARKS, {"asked": epoch})
    marks = {row.epoch: row.mark for row in rows}
    if not marks:
        raise UnavailableError(
            "the store has no epoch at all: its tables were emptied",
            fix="restore the database from a backup",
        )
    return marks


def _load_documents(connection: Connection, epoch: int) -> dict[Key, Document]:
    rows = connection.execute(_REVISIONS_AT, {"at": epoch}).all()
    return {Key(kind, name): read_document(kind, name, body) for kind, name, body in rows}
