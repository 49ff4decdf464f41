"""What goes wrong in the audit log.

The messages name entries by number, sizes and key ids, never people: they are safe to log.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.errors import PenstockError, UnavailableError
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
