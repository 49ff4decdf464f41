"""Until when situations hold that another gateway told, as far as time alone can change them.

    here   ──── ping sent ───────────────────────▶ until: what was told counts no longer
                     ╲                                   ▲
    there  ───────────▶ answered (`now`) ───── due ──────┘ not later than there

Rules that hold here:
- The other tells when its next timer is due by its own clock. A ping was sent before it was
  answered: counted from then, by clocks that are both steady, the moment comes here before it
  does there, never after.
- Two such clocks are taken to differ by less than a thousandth.
"""

from __future__ import annotations

from math import inf
from typing import Final

_DRIFT: Final = 0.001


class ClockBound:
    """Translates moments of another gateway's clock into moments of ours."""

    def __init__(self) -> None:
        self.until = 0.0
        """Before this moment nothing changes but by what is told."""
        self._now = 0.0
        self._behind = -inf
        """What our clock shows more than the other's, at least, as of `_now` there."""

    def hear(self, sent: float, now: float) -> None:
        """Take note that what was sent at a moment here was answered at a moment there."""
        self._behind = max(sent - now, self._behind - _DRIFT * abs(now - self._now))
        self._now = now

    def see(self, due: float | None) -> None:
        """Take note when something is due there; None: never."""
        if due is None:
            self.until = inf
        else:
            self.until = due + self._behind - _DRIFT * max(0.0, due - self._now)
