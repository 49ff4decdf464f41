"""Whether this machine has what an installation needs: the findings of `penstock doctor`.

Each check looks at one thing and yields findings. None of them changes anything: no
file is made, no table is upgraded, no port stays open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto


class Verdict(StrEnum):
    """How it stands with one thing."""

    OK = auto()
    WARNING = auto()
    """Nothing that runs now needs it, or it may cause trouble later."""
    MISSING = auto()
    """It is needed and not there."""
    WRONG = auto()
    """It is there and cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    topic: str
    name: str
    verdict: Verdict
    detail: str
    fix: str | None = None

    @property
    def stops(self) -> bool:
        """Whether the configured parts cannot run because of it."""
        return self.verdict in {Verdict.MISSING, Verdict.WRONG}
