"""What the store knows of the situations that hold now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.database import Database
from penstock.store.detection.journal import DetectedTransition, DetectionStore, JournalBatch
from penstock.store.detection.situations import read_live

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LONG = "p" * 400


def test_what_holds_is_known_while_somebody_detects(database: Database) -> None:
    with pytest.raises(SituationsUnknownError, match="no gateway has detected"):
        read_live(database, NOW).current("covid", "ann")
    store = DetectionStore(database, "here", seconds=10, clock=lambda: NOW)
    store.acquire()
    steps = [
        DetectedTransition(0, "covid", "ann", None, "Severe", "Symptom"),
        DetectedTransition(0, "covid", LONG, None, "Possible", "Contact"),
        DetectedTransition(0, "other", "ann", None, "Low", "Oxygen"),
        DetectedTransition(1, "other", "ann", "Low", None, "Normal"),
    ]
    store.append(JournalBatch(1, b"", steps))
    live = read_live(database, NOW + timedelta(seconds=9))
    assert live.current("covid", "ann") == "Severe"
    assert live.current("covid", LONG) == "Possible"
    assert live.current("covid", LONG + "p") is None
    assert live.current("other", "ann") is None
    assert live.occupied("covid") == {"Severe", "Possible"}
    assert live.occupied("other") == set()
    stale = read_live(database, NOW + timedelta(seconds=10))
    with pytest.raises(SituationsUnknownError, match="no gateway detects since 2026-03-01"):
        stale.current("covid", "ann")
    with pytest.raises(SituationsUnknownError):
        stale.occupied("covid")
