"""Telemetry of what the engine ignores or drops.

Rules that hold here:
- All of it is counted. What may hide an emergency, or its end, is logged as well: each reason
  at most once a minute, with its count since.
- Nobody is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.telemetry import get_logger, metrics

_LOSSES: Final = (
    *("incomplete", "late", "far_ahead", "rounds", "refused_topics"),
    *("dropped_groups", "dropped_rows", "dropped_matches", "dropped_samples"),
    *("dropped_subjects", "dropped_days"),
)
_QUIET: Final = ("duplicates", "ahead", "clock_back")
_PAUSE_SECONDS: Final = 60.0

_IGNORED = metrics.counter(
    "penstock_gateway_events_ignored",
    "What detection has ignored or dropped, by reason.",
    reason=(*_LOSSES, *_QUIET),
)
_log = get_logger("gateway")


class IgnoredEvents:
    """Compares the counts of an engine with those that were reported."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted: dict[str, int] = {}
        self._logged: dict[str, tuple[int, float]] = {}

    def reset(self, counts: Mapping[str, int]) -> None:
        """Take counts as reported: they are those of an earlier time."""
        self._counted = dict(counts)
        self._logged = {}

    def report(self, counts: Mapping[str, int]) -> None:
        """Count what is new, and log it where it is due."""
        now = self._clock()
        for reason, count in counts.items():
            new = count - self._counted.get(reason, 0)
            if not new:
                continue
            self._counted[reason] = count
            _IGNORED[reason].inc(new)
            if reason in _LOSSES:
                waiting, last = self._logged.get(reason, (0, -_PAUSE_SECONDS))
                self._logged[reason] = (waiting + new, last)
        for reason, (waiting, last) in self._logged.items():
            if waiting and now >= last + _PAUSE_SECONDS:
                self._logged[reason] = (0, now)
                _log.warning("detection ignored or dropped something", kind=reason, count=waiting)
