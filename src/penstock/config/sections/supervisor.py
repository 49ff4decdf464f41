"""`supervisor`: how `penstock up` starts, restarts and stops the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from penstock.config.quantities import Duration
from penstock.config.settings import Conflict, Settings, setting


class SupervisorSettings(Settings):
    """How `penstock up` starts, restarts and stops the parts."""

    ready_timeout: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "30s", "How long a part may take to become ready."
    )
    grace: Annotated[Duration, Field(ge=0, le=3600)] = setting(
        "10s", "How long a part may take to stop before it is killed."
    )
    backoff: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "500ms", "The wait before the first restart; it doubles each time."
    )
    backoff_limit: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "30s", "The longest wait before a restart."
    )
    failures: Annotated[int, Field(ge=1, le=1000)] = setting(
        5, "So many failures within the window, and the part is given up."
    )
    window: Annotated[Duration, Field(gt=0, le=86400)] = setting(
        "1m", "The window in which failures are counted."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a limit below its start."""
        if self.backoff_limit < self.backoff:
            yield Conflict(
                "backoff_limit", "the longest wait is shorter than the first", "raise it to backoff"
            )
