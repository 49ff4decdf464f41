"""What was denied, for the audit log: counted by who and why, written once a second.

Rules that hold here:
- Nobody is named: principals and clients appear as pseudonyms.
- A flood of denials becomes few entries with counts. What is counted is bounded; beyond
  the bound denials are counted without saying whose.
- Recording never stops a message from being denied. Where the audit log cannot be written,
  the health check of its writer says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.session import Session
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.errors import AuditFullError, AuditStoppedError

if TYPE_CHECKING:
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.writer import AuditWriter
    from penstock.store.definitions import Change

_KEYS_LIMIT = 4_096
_RULE_LIMIT = 256


class Denials:
    """Collects denials and hands them to the audit log."""

    def __init__(self, writer: AuditWriter | None, pseudonyms: Pseudonyms | None) -> None:
        self._writer = writer
        self._pseudonyms = pseudonyms
        self._counts: dict[tuple[str, str, str, str], int] = {}

    def delivery(self, session: Session, rule: str) -> None:
        """Count a message that did not reach a client."""
        self._count("delivery.denied", session.client_id, "purpose", rule)

    def publication(self, session: Session, why: str) -> None:
        """Count a message that did not reach the broker."""
        self._count("publication.denied", session.client_id, why, "")

    def subscription(self, session: Session, rule: str) -> None:
        """Count a subscription that was refused."""
        self._count("subscription.denied", session.client_id, "purpose", rule)

    def command(self, session: Session, rule: str) -> None:
        """Count a command that its sender may not give."""
        self._count("command.denied", session.client_id, "right", rule)

    def refused(self, session: Session, why: str) -> None:
        """Count what could not be understood."""
        self._count("request.refused", session.client_id, why, "")

    def will(self, session: Session) -> None:
        """Count a will that was deleted because its publisher may no longer write."""
        self._count("will.denied", session.client_id, "right", "")

    def connection(self, peer: str, why: str) -> None:
        """Count a connection that was refused; the address stands for who it was."""
        self._count("connection.refused", peer, why, "")

    def changed(self, session: Session, command: str, change: Change) -> None:
        """Record a command that changed the definitions."""
        if self._writer is None or self._pseudonyms is None or change.is_empty:
            return
        self._submit(
            Entry.make(
                "command.done",
                Outcome.DONE,
                actor=self._pseudonyms.client(session.client_id),
                epoch=change.epoch,
                operation=command.lower(),
                created=len(change.created),
                updated=len(change.updated),
                deleted=len(change.deleted),
            )
        )

    def flush(self, epoch: int) -> None:
        """Hand what was counted to the audit log."""
        counts, self._counts = self._counts, {}
        if self._writer is None or self._pseudonyms is None:
            return
        for (kind, who, why, rule), count in counts.items():
            entry = Entry.make(
                kind,
                Outcome.DENIED,
                actor=self._pseudonyms.client(who) if who else None,
                rule=_printable(rule),
                epoch=epoch,
                reason=why,
                count=count,
            )
            if not self._submit(entry):
                return

    def _count(self, kind: str, who: str, why: str, rule: str) -> None:
        key = (kind, who, why, rule)
        counts = self._counts
        if key not in counts and len(counts) >= _KEYS_LIMIT:
            key = (kind, "", why, "")
        counts[key] = counts.get(key, 0) + 1

    def _submit(self, entry: Entry) -> bool:
        if self._writer is None:
            return False
        try:
            self._writer.submit(entry)
        except (AuditFullError, AuditStoppedError):
            return False
        return True


def _printable(rule: str) -> str | None:
    shown = "".join(it if it.isprintable() else "?" for it in rule)[:_RULE_LIMIT]
    return shown or None
