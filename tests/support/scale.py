"""How often a test repeats what it draws: a sample in every run, the series in a long one.

`make test` runs every case, with as many walks, kills and examples as find a mistake of today.
`make test-long` runs the same cases with the numbers that find rare ones.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "PENSTOCK_TESTS"
"""Set to "long" by `pytest --long`, for the processes that a run starts."""
FACTOR: Final = 10
"""How many times as much a long run does where a test names no number of its own."""


def is_long() -> bool:
    """Tell whether this is a long run."""
    return os.environ.get(VARIABLE) == "long"


def scaled(count: int, *, long: int | None = None) -> int:
    """Give `count`; in a long run `long`, or ten times as many."""
    if not is_long():
        return count
    return FACTOR * count if long is None else long
