"""Days in a time zone: where they end, and which one a moment lies on.

Rules that hold here:
- A zone has a name of the IANA database, such as `Europe/Rome`. It is a constant of the
  expression: that it exists is known when the expression is compiled.
- All forms ask Python's `zoneinfo`, so that they agree: the database of a JVM may be another.
- A day ends where the next one begins: after 23, 24 or 25 hours.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from penstock.lang.scalars import read_timestamp

DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY: Final = timedelta(days=1)


@lru_cache(maxsize=64)
def find_zone(name: str) -> ZoneInfo:
    """Return the zone of a name that exists."""
    return ZoneInfo(name)


def begin_day(year: int, month: int, day: int, zone: str, *, later: int = 0) -> datetime | None:
    """Return the moment at which a day begins, or one so many days later; None out of range."""
    try:
        local = datetime(year, month, day) + later * _DAY  # noqa: DTZ001 - the zone follows
        return local.replace(tzinfo=find_zone(zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_moment(text: str, zone: str) -> datetime | None:
    """Read a timestamp, or a date, which is the end of that day; None where it is neither."""
    if not DATE.fullmatch(text):
        return read_timestamp(text)
    year, month, day = map(int, text.split("-"))
    return begin_day(year, month, day, zone, later=1)


def read_date(moment: datetime, zone: str) -> int | None:
    """Return the date of a moment as a number such as 20260301; None out of range."""
    try:
        local = moment.astimezone(find_zone(zone))
    except (ValueError, OverflowError):
        return None
    return local.year * 10_000 + local.month * 100 + local.day
