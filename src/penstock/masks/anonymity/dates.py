"""The domain of dates: days between two bounds, published as ranges, or as runs of buckets.

    days     [2024-03-04 - 2024-03-11]        months, years     [2024-01-01 - 2024-04-01]

Rules that hold here:
- A timestamp counts as its day in UTC.
- A code is the day as days since 1970; with a bucket it is the number of the bucket.
- Without buckets both ends are days of the group. With buckets ranges are half-open, as those of
  numbers in buckets are; the last one ends with the domain and is closed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final, Literal

import numpy as np

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.anonymity.domains import Domain, Floats
from penstock.masks.fields import FieldType, read_text

Unit = Literal["days", "months", "years"]

EPOCH: Final = date(1970, 1, 1).toordinal()
MONTHS: Final = 12
DATE_LENGTH: Final = 10


class DateDomain(Domain):
    """Dates from a first to a last day."""

    def __init__(
        self, name: str, low: date, high: date, *, bucket: int | None = None, unit: Unit = "days"
    ) -> None:
        super().__init__(name)
        problems = []
        if not low < high:
            fix = f"exchange {low} and {high}"
            problems.append(
                Problem(f"{name}.bounds", "the first day must lie before the last", fix)
            )
        if bucket is not None and bucket < 1:
            problems.append(
                Problem(f"{name}.bucket", f"{bucket!r} is not a bucket size", "give 1 or more")
            )
        if bucket is not None and unit != "days" and low.day != 1:
            fix = f"begin with {low.replace(day=1)}"
            message = f"buckets of {unit} begin on the first day of a month, not on {low}"
            problems.append(Problem(f"{name}.bounds", message, fix))
        if problems:
            raise InvalidError(f"domain {quote(name)}", problems)
        self.low, self.high, self.bucket, self.unit = low, high, bucket, unit
        self._low, self._high = float(_days(low)), float(_days(high))
        # In buckets, everything counts in months or in days.
        self._step = (bucket or 1) * (MONTHS if unit == "years" else 1)
        last = self._count(np.array([self._high]))[0] if bucket is not None else 0.0
        self._buckets = 0 if bucket is None else int(last) + 1

    @property
    def expected(self) -> str:
        """Name the bounds."""
        return f"a date from {self.low} to {self.high}"

    @property
    def size(self) -> int:
        """Count the buckets."""
        return self._buckets

    @property
    def span(self) -> tuple[float, float]:
        """Return the bounds, or the first and the last bucket."""
        return (0.0, self._buckets - 1.0) if self._buckets else (self._low, self._high)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell bounds and buckets."""
        return "date", self.name, str(self.low), str(self.high), self.bucket, self.unit

    def encode(self, values: Iterable[object]) -> Floats:
        """Return the days of dates, timestamps, their notations, or days since 1970."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
            days = values.astype(np.float64)
        else:
            days = np.array([_read(value) for value in values], dtype=np.float64)
        inside = (days >= self._low) & (days <= self._high)
        days = np.where(inside, days, np.nan)
        return days if self.bucket is None else self._count(days)

    def _count(self, days: Floats) -> Floats:
        """Return the number of each day's bucket; NaN stays NaN."""
        if self.unit == "days":
            return np.floor((days - self._low) / self._step)
        known = ~np.isnan(days)
        whole = np.where(known, days, 0.0).astype(np.int64)
        months = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        first = np.datetime64(self.low, "M").astype(np.int64)
        counted: Floats = np.floor((months - first) / self._step)
        return np.where(known, counted, np.nan)

    def loss(self, lows: Floats, highs: Floats) -> Floats:
        """Return the share of the domain that the range covers."""
        if self._buckets:
            return (highs - lows + 1.0) / self._buckets
        return (highs - lows) / (self._high - self._low)

    def labels(self, lows: Floats, highs: Floats) -> list[str | None]:
        """Write ranges, half-open where there are buckets; a single day stands alone."""
        pairs = zip(lows.tolist(), highs.tolist(), strict=True)
        if self.bucket is not None:
            bounds = [(self._start(low), self._start(high + 1)) for low, high in pairs]
        else:
            bounds = [(_date(low), _date(high)) for low, high in pairs]
        return [str(low) if low == high else f"[{low} - {high}]" for low, high in bounds]

    def _start(self, number: float) -> date:
        """Return the first day of a bucket, or the end of the domain behind the last."""
        if number >= self._buckets:
            return self.high
        passed = int(number) * self._step
        if self.unit == "days":
            return _date(self._low + passed)
        months = self.low.year * MONTHS + self.low.month - 1 + passed
        return date(months // MONTHS, months % MONTHS + 1, 1)


def _days(day: date) -> int:
    return day.toordinal() - EPOCH


def _date(days: float) -> date:
    return date.fromordinal(int(days) + EPOCH)


def _read(value: object) -> float:
    """Return the day that a value tells, as days since 1970; NaN for what is not a date."""
    try:
        if isinstance(value, str):
            long = len(value) > DATE_LENGTH
            value = datetime.fromisoformat(value) if long else read_text(FieldType.DATE, value)
        if isinstance(value, datetime):
            value = (value.astimezone(UTC) if value.tzinfo else value).date()
    except (ValueError, OverflowError):
        return math.nan
    return float(_days(value)) if isinstance(value, date) else math.nan
