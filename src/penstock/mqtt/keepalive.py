"""Keep alive: when a silent connection counts as lost, and when a client must speak.

Rules that hold here:
- Times are seconds of any clock that never goes back; the caller passes them in.
- A server waits one and a half times the interval for a packet; 0 turns waiting off.
- A client sends something in every interval, and expects the answer to its PINGREQ within
  another half of it.
"""

from __future__ import annotations

import math
from typing import Final

GRACE: Final = 1.5
"""How many intervals a server waits."""


class KeepAlive:
    """Arithmetic of one connection; set `heard` and `spoke` to the time of the last packet."""

    __slots__ = ("asked", "heard", "interval", "spoke")

    def __init__(self, interval: int, now: float) -> None:
        self.interval = interval
        self.heard = now
        self.spoke = now
        self.asked: float | None = None

    def lost_at(self) -> float:
        """Say, as a server, when the client counts as lost unless it speaks before."""
        return self.heard + self.interval * GRACE if self.interval else math.inf

    def ping_at(self) -> float:
        """Say, as a client, when a PINGREQ is due unless something is sent before."""
        if not self.interval or self.asked is not None:
            return math.inf
        return self.spoke + self.interval

    def ping(self, now: float) -> None:
        """Take note, as a client, that a PINGREQ is sent."""
        self.spoke = self.asked = now

    def pong(self, now: float) -> None:
        """Take note, as a client, that a PINGRESP came."""
        self.heard = now
        self.asked = None

    def unanswered_at(self) -> float:
        """Say, as a client, when the server counts as lost unless the PINGRESP comes before."""
        if self.asked is None:
            return math.inf
        return self.asked + self.interval * (GRACE - 1)
