"""Timestamps and durations: notation, range, and parts.

Rules that hold here:
- A timestamp is a moment in UTC with microseconds, in the years 1 to 9999; a duration
  is a number of microseconds, up to 10,000 years both ways. Beyond is no value.
- The notation of a timestamp is RFC 3339 with capital T and Z, at most six decimals
  and an offset of at most 18 hours: what Spark and Python read alike.
- Parts of a timestamp are parts of its UTC form. Zones with daylight saving are left
  out: their rules differ between installations.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

from penstock.lang.limits import MAX_DURATION

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

# Shared with the Spark form: nothing in it means different things to Java and Python.
TIMESTAMP_PATTERN: Final = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
    "(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
)
_TIMESTAMP: Final = re.compile(TIMESTAMP_PATTERN)
_DURATION: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?(ms|us|d|h|m|s)")
_MICROSECONDS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}


def read_timestamp(text: str) -> datetime | None:
    """Read a timestamp in RFC 3339 notation; None where it is not one."""
    if not _TIMESTAMP.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # no such day; year 0 or 10000
        return None


def read_duration(text: str) -> timedelta | None:
    """Read a duration such as `1h30m`, `-90s`, `1.5d` or `250ms`; None where it is not one."""
    negative = text.startswith("-")
    at = 1 if negative else 0
    total = Fraction(0)
    if at == len(text):
        return None
    while at < len(text):
        match = _DURATION.match(text, at)
        if match is None:
            return None
        whole, decimals, unit = match[1], match[2] or "", match[3]
        total += Fraction(int(whole + decimals), 10 ** len(decimals)) * _MICROSECONDS[unit]
        at = match.end()
    if total.denominator != 1 or total > MAX_DURATION // MICROSECOND:
        return None
    return timedelta(microseconds=-total.numerator if negative else total.numerator)


def as_timestamp(value: datetime) -> datetime | None:
    """Return a moment in UTC; None where it has no zone or lies out of range."""
    if value.tzinfo is None:
        return None
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


def as_duration(value: timedelta) -> timedelta | None:
    """Return a duration, or None where it is out of range."""
    return value if -MAX_DURATION <= value <= MAX_DURATION else None


def from_seconds(seconds: int) -> datetime | None:
    """Return the moment so many seconds after 1970; None where it is out of range."""
    try:
        return EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None


def to_seconds(moment: datetime) -> int:
    """Return the whole seconds from 1970 to a moment, rounded down."""
    return (moment - EPOCH) // timedelta(seconds=1)


def count_units(value: timedelta, unit: timedelta) -> int:
    """Return how many whole units a duration holds, rounded towards zero."""
    whole = abs(value) // unit
    return whole if value >= timedelta(0) else -whole
