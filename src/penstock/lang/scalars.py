"""What strings, patterns, timestamps, durations and days are, in every form alike.

Rules that hold here:
- A string is a sequence of Unicode characters (code points without surrogates);
  anything else that Python calls `str` is no value.
- `lower` maps one code point to one code point, whatever stands beside it, and only
  where both were assigned in Unicode 3.2. Full lower-casing depends on the Unicode version of
  each runtime; case pairs that old are frozen by Unicode's stability policy, so every
  Python and every JVM agrees on them.
- The levels of a topic are what stands between its slashes.
- A regular expression has RE2's syntax and meaning. It is a constant of the expression: its
  cost is known when it is compiled. `search` looks for it anywhere in the text, in time
  linear in the text, and captures nothing.
- A timestamp is a moment in UTC with microseconds, in the years 1 to 9999; a duration
  is a number of microseconds, up to 10,000 years both ways. Beyond is no value.
- The notation of a timestamp is RFC 3339 with capital T and Z, at most six decimals
  and an offset of at most 18 hours: what Spark and Python read alike.
- Parts of a timestamp are parts of its UTC form; days are those of a time zone.
- A zone has a name of the IANA database, such as `Europe/Rome`. It is a constant of the
  expression: that it exists is known when the expression is compiled.
- All forms ask Python's `zoneinfo`, so that they agree: the database of a JVM may be another.
- A day ends where the next one begins: after 23, 24 or 25 hours.
- `Days` counts them from 1970-01-01, by the calendar of the zone, in milliseconds. It remembers the
  day that was asked for last: samples come in the order of time.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import re2

from penstock.lang.errors import MAX_DURATION, MAX_PATTERN, MAX_PATTERN_MEMORY

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

# Shared with the Spark form: nothing in them means different things to Java and Python.
INT_PATTERN: Final = "-?[0-9]{1,19}"
DOUBLE_PATTERN: Final = "-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?"
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


# Strings


def is_text(value: str) -> bool:
    """Tell whether a str is free of surrogates, so that it has a UTF-8 form."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _build_lower_table() -> dict[int, int]:
    table = {}
    for code in range(0x10500):  # no capital letter of Unicode 3.2 lies beyond
        character = chr(code)
        small = character.lower()
        pair = len(small) == 1 and small != character
        if pair and all(unicodedata.ucd_3_2_0.category(c) != "Cn" for c in (character, small)):
            table[code] = ord(small)
    return table


LOWER: Final = _build_lower_table()


def lower(value: str) -> str:
    """Return the string with each capital letter replaced by its small one."""
    return value.lower() if value.isascii() else value.translate(LOWER)


def includes(topic: str, word: str) -> bool:
    """Tell whether one level of a topic equals or contains a word."""
    return "/" not in word and word in topic


# Regular expressions


class RegexError(ValueError):
    """A pattern is too long, too large, or not RE2 syntax."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A compiled pattern; two are the same when their texts are."""

    text: str
    program: Any = field(compare=False, repr=False)

    def search(self, text: str) -> bool:
        """Tell whether the pattern occurs in a text."""
        return self.program.search(text.encode()) is not None


def compile_regex(text: str) -> Regex:
    """Compile a pattern within the bounds of the language."""
    if len(text) > MAX_PATTERN:
        raise RegexError(f"it has {len(text)} characters, at most {MAX_PATTERN} are allowed")
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return Regex(text, re2.compile(text, options))
    except re2.error as error:
        detail = error.args[0]
        raise RegexError(detail.decode() if isinstance(detail, bytes) else detail) from None


# Timestamps and durations


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
