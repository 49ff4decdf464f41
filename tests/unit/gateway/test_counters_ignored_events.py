"""What detection ignores is counted, and told now and then."""

from __future__ import annotations

import pytest

from penstock.gateway import counters
from penstock.gateway.counters import IgnoredEvents


def test_what_is_new_is_counted_and_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(
        counters._log, "warning", lambda _, *, kind, count: told.append((kind, count))
    )
    series = counters._IGNORED["late"]
    before = series._value.get()
    now = 1000.0
    it = IgnoredEvents(lambda: now)
    it.reset({"late": 5})
    it.report({"late": 5, "duplicates": 3})
    assert told == []
    it.report({"late": 7, "incomplete": 1})
    assert told == [("late", 2), ("incomplete", 1)]
    now += 59
    it.report({"late": 8, "incomplete": 1})
    it.report({"late": 11, "incomplete": 1})
    assert len(told) == 2
    now += 1
    it.report({"late": 11, "incomplete": 1})
    assert told[2:] == [("late", 4)]
    assert series._value.get() - before == 6
