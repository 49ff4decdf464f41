"""The days of a time zone, in milliseconds since 1970.

Rules that hold here:
- Days are counted from 1970-01-01, by the calendar of the zone. A day has 23, 24 or 25 hours.
- The day that was asked for last is remembered: samples come in the order of time.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from penstock.lang.scalars import EPOCH
from penstock.lang.zones import begin_day, find_zone

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
