"""Documents on their way into the store and out of it: edits, and snapshots of one epoch.

Rules that hold here:
- An edit puts a document or deletes a key; one change edits a key at most once.
- What is stored is canonical JSON that reads back as the same data on every machine: no
  NaN, no half characters, bounded size and depth. All problems are reported at once.
- Meaning is not checked here: the caller validates the set as a whole.
- A snapshot is one moment: it holds everything up to its epoch and nothing after it.
- Whoever holds a snapshot loads only what changed since, if the database still has the
  epoch that the snapshot came from. A restored or replaced database is loaded whole.
- Nobody changes a snapshot, nor the bodies in it: many readers share them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import InvalidError, Problem, UnavailableError, UsageError, quote
from penstock.model.document import Document, Key
from penstock.store.schema import (
    ACTOR_LENGTH,
    KIND_LENGTH,
    NAME_LENGTH,
    REASON_LENGTH,
    epochs,
    revisions,
)
from penstock.telemetry.health import Figures


@dataclass(frozen=True, slots=True)
class Put:
    """Store this document, whether its key is new or not."""

    document: Document

    @property
    def key(self) -> Key:
        """What this edit is about."""
        return self.document.key


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the document of this key, if there is one."""

    key: Key


Edit = Put | Delete


@dataclass(frozen=True, slots=True)
class EditLimits:
    """How much the store takes."""

    document_bytes: int = 256 * 1024
    document_depth: int = 64
    edits_per_change: int = 10_000
    documents: int = 100_000


def edits_between(
    now: Mapping[Key, Document], then: Mapping[Key, Document], keys: Iterable[Key] | None = None
) -> list[Edit]:
    """Return the edits that lead from one set to another, for all keys or for some.

    A rollback is a change like any other: these edits, from now to an earlier epoch.
    """
    wanted = now.keys() | then.keys() if keys is None else set(keys)
    edits: list[Edit] = []
    for key in sorted(wanted):
        if key in then:
            edits.append(Put(then[key]))
        elif key in now:
            edits.append(Delete(key))
    return edits


def encode_edits(edits: Sequence[Edit], limits: EditLimits) -> dict[Key, str | None]:
    """Return the canonical JSON of what is put, None for what is deleted; refuse bad edits."""
    if len(edits) > limits.edits_per_change:
        problem = Problem(
            "",
            f"{len(edits)} edits in one change; at most {limits.edits_per_change} are allowed",
            "split the change",
        )
        raise InvalidError("the change", [problem])
    problems: list[Problem] = []
    encoded: dict[Key, str | None] = {}
    for edit in edits:
        if edit.key in encoded:
            message = "appears twice in one change"
            problems.append(Problem(quote(edit.key), message, "keep one of them"))
        encoded[edit.key] = None
        if isinstance(edit, Put):
            try:
                _check_key(edit.key)
                encoded[edit.key] = _encode(edit.document, limits)
            except ValueError as error:
                problems.append(Problem(quote(edit.key), str(error)))
    if problems:
        raise InvalidError("the change", problems)
    return encoded


def check_origin(actor: str, reason: str) -> None:
    """Refuse an actor or a reason that the history could not hold."""
    problems = []
    if not actor or not actor.isprintable() or len(actor) > ACTOR_LENGTH:
        text = f"{quote(actor)} must be 1 to {ACTOR_LENGTH} printable characters"
        problems.append(Problem("actor", text))
    if not "".join(reason.split()).isprintable() or len(reason) > REASON_LENGTH:
        text = f"{quote(reason)} must be at most {REASON_LENGTH} printable characters"
        problems.append(Problem("reason", text))
    if problems:
        raise InvalidError("the change", problems)


def _check_key(key: Key) -> None:
    for field, text, limit in (("kind", key.kind, KIND_LENGTH), ("name", key.name, NAME_LENGTH)):
        if not text or not text.isprintable() or len(text) > limit:
            raise ValueError(f"the {field} must be 1 to {limit} printable characters")


def _encode(document: Document, limits: EditLimits) -> str:
    if _is_deeper(document.body, limits.document_depth):
        raise ValueError(f"nested deeper than {limits.document_depth} levels")
    try:
        text = document.canonical()
        size = len(text.encode())
    except TypeError as error:
        raise ValueError(f"holds what JSON cannot express: {error}") from error
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is not a character") from None
    if size > limits.document_bytes:
        raise ValueError(f"{size} bytes of JSON; at most {limits.document_bytes} are allowed")
    if "NaN" in text or "Infinity" in text:  # in a text, or as what is not a number of JSON
        json.loads(text, parse_constant=_refuse)
    return text


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        children: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        children = value
    else:
        return False
    return levels == 0 or any(_is_deeper(child, levels - 1) for child in children)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


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
    marks = dict(connection.execute(_MARKS, {"asked": epoch}).all())
    if not marks:
        raise UnavailableError(
            "the store has no epoch at all: its tables were emptied",
            fix="restore the database from a backup",
        )
    return marks


def _load_documents(connection: Connection, epoch: int) -> dict[Key, Document]:
    rows = connection.execute(_REVISIONS_AT, {"at": epoch}).all()
    return {Key(kind, name): read_document(kind, name, body) for kind, name, body in rows}
