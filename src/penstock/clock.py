"""The clocks of this machine: one to measure by, one for the time of day.

Pure packages take the time as an argument; nothing of this is imported there.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

boot_clock: Final = partial(time.clock_gettime, _BOOT)
"""Returns seconds that go on while the machine sleeps, and never go back."""


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)
