"""The clocks of this machine: one to measure by, one for the time of day.

Pure packages take the time as an argument; nothing of this is imported there.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return seconds that go on while the machine sleeps, and never go back."""
    return time.clock_gettime(_BOOT)


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)
