"""What was denied, or granted in an emergency only, for the audit log.

It is counted by who and why, and written once a second.

Rules that hold here:
- Nobody is named: users and clients appear as pseudonyms. The actor is the user where the
  client authenticated as one, so that a person's entries can be found; else the client.
- A flood of denials becomes few entries with counts. What is counted is bounded; beyond
  the bound denials are counted without saying whose.
- Recording never stops a message from being denied. What the audit log does not take is
  kept and tried again; the health check of its writer says so.
- Changes of definitions are not recorded here: they are in their own transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.gateway.session import ANONYMOUS, Session
from penstock.policy.decision import Applied, Decision
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.errors import AuditFullError, AuditStoppedError
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.writer import AuditWriter
from penstock.store.detection.situations import name_details

_KEYS_LIMIT = 4_096
_RULE_LIMIT = 256
_EMERGENCY = "emergency"

allow_detail("client", Detail.PSEUDONYM)


class _Denial(NamedTuple):
    kind: str
    user: str
    client: str
    why: str
    rule: str
    emergency: Applied | None = None
    """Whose emergency, where one was the reason to grant something after all."""
    overridden: bool = False


class Denials:
    """Collects denials and hands them to the audit log."""

    def __init__(self, writer: AuditWriter | None, pseudonyms: Pseudonyms | None) -> None:
        self._writer = writer
        self._pseudonyms = pseudonyms
        self._counts: dict[_Denial, int] = {}

    def delivery(self, session: Session, rule: str, why: str = "purpose") -> None:
        """Count a message that did not reach a client."""
        self._count("delivery.denied", session, why, rule)

    def publication(self, session: Session, why: str, rule: str = "") -> None:
        """Count a message that did not reach the broker."""
        self._count("publication.denied", session, why, rule)

    def emergency(self, session: Session, decision: Decision) -> None:
        """Count a message that an emergency policy let pass, be it against a preference."""
        user = "" if session.principal == ANONYMOUS else session.principal
        overridden = decision.overridden
        kind = "preference.overridden" if overridden else "emergency.granted"
        self._add(
            _Denial(
                kind,
                user,
                session.client_id,
                _EMERGENCY,
                decision.rule,
                decision.applied,
                overridden,
            )
        )

    def subscription(self, session: Session, rule: str) -> None:
        """Count a subscription that was refused."""
        self._count("subscription.denied", session, "purpose", rule)

    def command(self, session: Session, rule: str) -> None:
        """Count a command that its sender may not give."""
        self._count("command.denied", session, "right", rule)

    def refused(self, session: Session, why: str) -> None:
        """Count what could not be understood."""
        self._count("request.refused", session, why)

    def will(self, session: Session, why: str = "right", rule: str = "") -> None:
        """Count a will that was not sent because its publisher may not write."""
        self._count("will.denied", session, why, rule)

    def connection(self, peer: str, why: str) -> None:
        """Count a connection that was refused; the address stands for who it was."""
        self._add(_Denial("connection.refused", "", peer, why, ""))

    def record(self, entry_of: Callable[[Pseudonyms], Entry]) -> None:
        """Hand over something that is written by itself, not counted."""
        if self._writer is not None and self._pseudonyms is not None:
            # What is not taken is in the metrics of the writer, and in the store's history.
            with contextlib.suppress(AuditFullError, AuditStoppedError):
                self._writer.submit(entry_of(self._pseudonyms))

    def flush(self, epoch: int) -> None:
        """Hand what was counted to the audit log, as far as it takes it."""
        if self._writer is None or self._pseudonyms is None:
            self._counts.clear()
            return
        for denial in list(self._counts):
            entry = _entry(denial, self._counts[denial], epoch, self._pseudonyms)
            try:
                self._writer.submit(entry)
            except (AuditFullError, AuditStoppedError):
                return
            del self._counts[denial]

    def _count(self, kind: str, session: Session, why: str, rule: str = "") -> None:
        user = "" if session.principal == ANONYMOUS else session.principal
        self._add(_Denial(kind, user, session.client_id, why, rule))

    def _add(self, denial: _Denial) -> None:
        counts = self._counts
        if denial not in counts and len(counts) >= _KEYS_LIMIT:
            denial = _Denial(denial.kind, "", "", denial.why, "", None, denial.overridden)
        counts[denial] = counts.get(denial, 0) + 1


def _entry(denial: _Denial, count: int, epoch: int, pseudonyms: Pseudonyms) -> Entry:
    details: dict[str, Any] = {"reason": denial.why, "count": count}
    client = pseudonyms.client(denial.client) if denial.client else None
    if client is not None:
        details["client"] = client
    subject = None
    granted = denial.emergency
    if granted is not None:
        details |= name_details(scenario=granted.scenario, situation=granted.situation)
        details["override"] = denial.overridden
        subject = pseudonyms.person(granted.subject) if granted.subject is not None else None
    return Entry.make(
        denial.kind,
        Outcome.ALLOWED if denial.why == _EMERGENCY else Outcome.DENIED,
        actor=pseudonyms.person(denial.user) if denial.user else client,
        subject=subject,
        rule=_printable(denial.rule),
        epoch=epoch,
        **details,
    )


def _printable(rule: str) -> str | None:
    shown = "".join(it if it.isprintable() else "?" for it in rule)[:_RULE_LIMIT]
    return shown or None
