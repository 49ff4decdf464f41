"""What goes wrong in the audit log: the errors that are raised, the findings of verification.

The messages name entries by number, sizes and key ids, never people: they are safe to log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.errors import PenstockError, UnavailableError
from penstock.store.audit.merkle import EMPTY_ROOT
from penstock.telemetry import safe_text


@safe_text
class TamperedError(PenstockError):
    """The log, a head or a proof is not what was signed."""

    exit_code: ClassVar[int] = 1


@safe_text
class UncertainAppendError(UnavailableError):
    """The database failed while entries were being committed: they may be in the log or not."""

    def __init__(self, size: int, root: bytes) -> None:
        super().__init__(
            f"the database failed while the audit log was growing to {size} entries",
            fix="ask AuditLog.holds before appending them again",
        )
        self.size = size
        self.root = root


@safe_text
class AuditFullError(UnavailableError):
    """The queue of the audit writer has no room: what cannot be recorded must not happen."""


@safe_text
class AuditStoppedError(UnavailableError):
    """The audit writer takes no entries any more."""


FINDINGS_LIMIT = 20


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is not as it was signed."""

    message: str
    entry: int | None = None  # the first entry it is about
    until: int | None = None  # where that is only known to lie in a range: its last entry


@dataclass(slots=True)
class AuditVerdict:
    """What verification found."""

    size: int = 0
    root: bytes = EMPTY_ROOT
    heads: int = 0
    pruned: int = 0  # entries before this one were pruned
    survivors: int = 0  # but so many of them are left
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is as it was signed."""
        return not self.findings

    @property
    def first_bad(self) -> int | None:
        """The first entry that is known to be bad, or that may be the first bad one."""
        return min((one.entry for one in self.findings if one.entry is not None), default=None)

    def add(self, message: str, entry: int | None = None, until: int | None = None) -> None:
        """Note a finding; after so many, more would not help anybody."""
        if len(self.findings) < FINDINGS_LIMIT:
            self.findings.append(AuditFinding(message, entry, until))
