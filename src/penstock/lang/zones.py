"""Days in a time zone: where they begin and end, and which one a moment lies on.

Rules that hold here:
- A zone has a name of the IANA database, such as `Europe/Rome`. It is a constant of the
  expression: that it exists is known when the expression is compiled.
- All forms ask Python's `zoneinfo`, so that they agree: the database of a JVM may be another.
- A day ends where the next one begins: after 23, 24 or 25 hours.
- `Days` counts them from 1970-01-01, by the calendar of the zone, in milliseconds. It remembers the
  day that was asked for last: samples come in the order of time.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from penstock.lang.scalars import EPOCH, read_timestamp

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


DAY: Final = 86_400_000
UNIVERSAL: Final = "UTC"
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIRST: Final = date(1970, 1, 1)


class Days:
    """Tells on which day a moment lies, and when days begin."""

    def __init__(self, zone: str = UNIVERSAL) -> None:
        self._zone = zone
        self._known = (0, 0, 0)  # day, beginning, end

    def number(self, at: int) -> int:
        """Return the day of a moment."""
        if self._zone == UNIVERSAL:
            return at // DAY
        day, begin, end = self._known
        if not begin <= at < end:
            moment = EPOCH + timedelta(milliseconds=at)
            day = (moment.astimezone(find_zone(self._zone)).date() - _FIRST).days
            self._known = day, self.begin(day), self.begin(day + 1)
        return day

    def begin(self, day: int) -> int:
        """Return the moment at which a day begins."""
        if self._zone == UNIVERSAL:
            return day * DAY
        local = _FIRST + timedelta(days=day)
        begin = begin_day(local.year, local.month, local.day, self._zone)
        return day * DAY if begin is None else (begin - EPOCH) // _MILLISECOND

    def date(self, day: int) -> int:
        """Return a day as a number such as 20260301."""
        local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
        return local.year * 10_000 + local.month * 100 + local.day
