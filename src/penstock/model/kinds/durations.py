"""Durations in definitions: milliseconds, or a number with a unit, such as `10s`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from penstock.errors import quote

LONGEST: Final = 366 * 24 * 3600 * 1000
"""Milliseconds of the longest duration: records wait in memory until their window is over."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(rf"([0-9]{{1,12}})\s?({'|'.join(_UNITS)})?", re.ASCII)

AHEAD: Final = _UNITS["d"]
"""How far a clock of somebody else may be ahead where nothing is said: within it lie all the
time zones that a device can be set to by mistake."""


def read_milliseconds(value: Any) -> Any:
    """Return the milliseconds of a duration such as `10s`; a plain number has them already."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError(
            f"{quote(value)} is not a duration → "
            f"write milliseconds, or a number with a unit ({', '.join(_UNITS)}), such as 10s"
        )
    return int(found[1]) * _UNITS[found[2] or "ms"]


def write_duration(milliseconds: int) -> str:
    """Write a duration with the largest unit that it is a whole number of."""
    unit = next(name for name in reversed(_UNITS) if not milliseconds % _UNITS[name])
    return f"{milliseconds // _UNITS[unit]}{unit}"


Milliseconds = Annotated[int, Field(le=LONGEST), BeforeValidator(read_milliseconds)]
