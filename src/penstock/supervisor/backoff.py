"""When to start a failed part again, and when to give it up.

A failure counts for the length of the window. The wait doubles with each failure that
counts, up to a limit, and half of it is random so that parts that failed together do
not come back together. As many failures within the window as are declared, and the part
is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.config.sections.processes import SupervisorSettings


class Backoff:
    """The failures of one part; clock and randomness are passed in."""

    def __init__(self, settings: SupervisorSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._failed_at: deque[float] = deque()

    def fail(self, now: float) -> float | None:
        """Note a failure; return the seconds to wait, or None where the part is given up."""
        settings = self._settings
        self._failed_at.append(now)
        while self._failed_at[0] <= now - settings.window:
            self._failed_at.popleft()
        count = len(self._failed_at)
        if count >= settings.failures:
            return None
        # The exponent is bounded by the number of failures, which is bounded by settings.
        whole = min(settings.backoff_limit, settings.backoff * 2.0 ** (count - 1))
        return whole * (0.5 + 0.5 * self._random())

    def forget(self) -> None:
        """Forget all failures, because someone asked to try again."""
        self._failed_at.clear()
