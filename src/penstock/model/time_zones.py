"""Time zones by their names in the IANA database, as Python's `zoneinfo` has it."""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import available_timezones


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


def is_zone(name: object) -> bool:
    """Tell whether there is a time zone of this name."""
    return isinstance(name, str) and name in _names()
