"""Records every change of definitions in the audit log, in the change's own transaction."""

from __future__ import annotations

from sqlalchemy import Connection

from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.checked import Record
from penstock.store.definitions import Change

CHANGED = "definitions.changed"


def recorder(log: AuditLog, pseudonyms: Pseudonyms) -> Record:
    """Return what `CheckedDefinitions` calls for each change that alters something."""

    def record(connection: Connection, change: Change, actor: str) -> None:
        entry = Entry.make(
            CHANGED,
            Outcome.DONE,
            actor=pseudonyms.person(actor),
            epoch=change.epoch,
            created=len(change.created),
            updated=len(change.updated),
            deleted=len(change.deleted),
        )
        log.append_within(connection, [entry])

    return record
