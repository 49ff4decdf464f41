"""The definitions: one set of documents, changed as a whole, each change an epoch.

Rules that hold here:
- Changes come one after another. The caller's `edit` sees the set at the current epoch and
  decides; if it raises, nothing is written.
- A change is stored completely or not at all, with actor, reason and history, and raises
  the epoch by one. A change that alters nothing writes nothing and keeps the epoch.
- The notice to followers is part of the same transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.clock import boot_clock, utc_now
from penstock.errors import InvalidError, Problem
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import (
    Edit,
    EditLimits,
    Snapshot,
    check_origin,
    describe_age,
    encode_edits,
    load_at,
    load_current,
    read_document,
)
from penstock.store.schema import CHANNEL, epochs, revisions
from penstock.telemetry.health import Figures

AREA = "definitions"
_SUPERSEDE = (
    revisions.update()
    .where(
        revisions.c.kind == sa.bindparam("of_kind"),
        revisions.c.name == sa.bindparam("of_name"),
        revisions.c.superseded.is_(None),
    )
    .values(superseded=sa.bindparam("by"))
)
_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("epoch")))


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did; nothing, if no document differs."""

    before: Snapshot
    after: Snapshot
    created: tuple[Key, ...] = ()
    updated: tuple[Key, ...] = ()
    deleted: tuple[Key, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch that holds now."""
        return self.after.epoch

    @property
    def is_empty(self) -> bool:
        """Say whether nothing was changed."""
        return self.after is self.before


@dataclass(frozen=True, slots=True)
class Epoch:
    """One change in the history of the whole set."""

    epoch: int
    at: datetime
    actor: str
    reason: str
    changes: int


@dataclass(frozen=True, slots=True)
class Revision:
    """One change in the history of one definition; no document: it was deleted."""

    epoch: int
    at: datetime
    actor: str
    reason: str
    document: Document | None


class Definitions:
    """Reads and changes the definitions in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], datetime] = utc_now,
        limits: EditLimits | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits or EditLimits()
        self._held: Snapshot | None = None
        self._confirmed = 0.0

    def snapshot(self) -> Snapshot:
        """Return the current set. Costs one small query if nothing changed since the last call."""
        asked = boot_clock()
        with self._database.read() as connection:
            self._held = snapshot = load_current(connection, self._held).snapshot
        self._confirmed = asked
        return snapshot

    def confirmed(self) -> Figures:
        """Return the epoch that was current when the store was last asked, and its age since."""
        held = self._held
        return describe_age(held.epoch if held else None, boot_clock() - self._confirmed)

    def snapshot_at(self, epoch: int) -> Snapshot:
        """Return the set as it stood at an epoch."""
        with self._database.read() as connection:
            return load_at(connection, epoch)

    def change(
        self,
        edit: Callable[[Snapshot], Sequence[Edit]],
        *,
        actor: str,
        reason: str,
        then: Callable[[Connection, Change], None] | None = None,
        whole: bool = False,
    ) -> Change:
        """Change the set: `edit` sees the current one and returns edits, or raises.

        With `whole` it may edit as many as there may be: no caller's input says how many.

        `then` may write further rows into the same transaction, such as orders that must
        exist if and only if the change does; it is called even if nothing changed. Neither
        callback may open a transaction of its own that writes.
        """
        check_origin(actor, reason)
        with self._database.write(AREA) as connection:
            before = load_current(connection, self._held).snapshot
            limits = self._limits
            if whole:
                limits = replace(limits, edits_per_change=2 * limits.documents)
            encoded = encode_edits(edit(before), limits)
            change = self._plan(before, encoded)
            if not change.is_empty:
                self._store(connection, change, encoded, actor, reason)
            if then is not None:
                then(connection, change)
        self._held = change.after
        return change

    def history(self, key: Key, limit: int = 100) -> list[Revision]:
        """Return the changes of one definition, newest first."""
        query = (
            sa.select(epochs, revisions.c.body)
            .join_from(revisions, epochs, revisions.c.epoch == epochs.c.epoch)
            .where(revisions.c.kind == key.kind, revisions.c.name == key.name)
            .order_by(revisions.c.epoch.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [
                Revision(
                    row.epoch,
                    row.at,
                    row.actor,
                    row.reason,
                    None if row.body is None else read_document(key.kind, key.name, row.body),
                )
                for row in connection.execute(query)
            ]

    def epochs(self, limit: int = 100) -> list[Epoch]:
        """Return the changes of the whole set, newest first."""
        changes = (
            sa.select(sa.func.count())
            .where(revisions.c.epoch == epochs.c.epoch)
            .scalar_subquery()
            .label("changes")
        )
        query = sa.select(epochs, changes).order_by(epochs.c.epoch.desc()).limit(limit)
        with self._database.read() as connection:
            return [
                Epoch(row.epoch, row.at, row.actor, row.reason, row.changes)
                for row in connection.execute(query)
            ]

    def _plan(self, before: Snapshot, encoded: dict[Key, str | None]) -> Change:
        """Find out what the edits change; drop from `encoded` what they leave as it is."""
        documents = before.copy_documents()
        created: list[Key] = []
        updated: list[Key] = []
        deleted: list[Key] = []
        for key, text in list(encoded.items()):
            held = before.documents.get(key)
            if text is None and held is not None:
                deleted.append(key)
                del documents[key]
            elif text == (None if held is None else held.canonical()):
                del encoded[key]
            elif text is not None:
                (created if held is None else updated).append(key)
                # What we hand out is what every other process will read.
                documents[key] = read_document(key.kind, key.name, text)
        if not encoded:
            return Change(before, before)
        if len(documents) > self._limits.documents:
            text = f"{len(documents)} definitions; at most {self._limits.documents} are allowed"
            raise InvalidError("the change", [Problem("", text, "delete what is no longer needed")])
        after = Snapshot(before.epoch + 1, uuid.uuid4().hex, MappingProxyType(documents))
        return Change(before, after, tuple(created), tuple(updated), tuple(deleted))

    def _store(
        self,
        connection: Connection,
        change: Change,
        encoded: dict[Key, str | None],
        actor: str,
        reason: str,
    ) -> None:
        after = change.after
        connection.execute(
            epochs.insert(),
            {
                "epoch": after.epoch,
                "mark": after.mark,
                "at": self._clock(),
                "actor": actor,
                "reason": reason,
            },
        )
        connection.execute(
            _SUPERSEDE,
            [{"of_kind": key.kind, "of_name": key.name, "by": after.epoch} for key in encoded],
        )
        connection.execute(
            revisions.insert(),
            [
                {"kind": key.kind, "name": key.name, "epoch": after.epoch, "body": text}
                for key, text in encoded.items()
            ],
        )
        if self._database.is_postgresql:
            connection.execute(_NOTIFY, {"epoch": str(after.epoch)})
