"""The situations that hold, as a gateway that detects decides by them, read from the store.

Rules that hold here:
- Who does not detect knows no situations. So where no gateway detects, none is known here
  either: questions get the answer that a gateway would give (`SituationsUnknownError`).
- Who detects and what it found are read in one transaction. The store is behind the gateway by
  the few milliseconds that a batch of its journal waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

import sqlalchemy as sa

from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.database import Database
from penstock.store.detection import Detector, read_detector
from penstock.store.situations import Standing, as_stored, situations_table


class LiveSituations:
    """Answers what decisions ask about emergencies."""

    def __init__(self, standing: Iterable[Standing], trouble: str = "") -> None:
        self.standing: Sequence[Standing] = tuple(standing)
        """What holds; of use only where there is no `trouble`."""
        self.trouble = trouble
        """Why situations are not known, if they are not."""
        self._held = {(it.scenario, it.subject): it for it in self.standing}

    def find(self, scenario: str, subject: str) -> Standing | None:
        """Return what holds for a scenario's subject, and since when."""
        if self.trouble:
            raise SituationsUnknownError(self.trouble)
        return self._held.get((scenario, as_stored(subject)))

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        found = self.find(scenario, subject)
        return None if found is None else found.situation

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        if self.trouble:
            raise SituationsUnknownError(self.trouble)
        return {it.situation for it in self.standing if it.scenario == scenario}


def read_live(database: Database, now: datetime) -> LiveSituations:
    """Return what holds, with what a gateway says that has not lost sight of it."""
    table = situations_table
    with database.read() as connection:
        detector = read_detector(connection)
        rows = connection.execute(
            sa.select(table).order_by(table.c.scenario, table.c.subject)
        ).all()
    return LiveSituations((Standing(*row) for row in rows), find_trouble(detector, now))


def find_trouble(detector: Detector | None, now: datetime) -> str:
    """Say why situations are not known, or nothing where they are."""
    if detector is None:
        return "no gateway has detected anything yet"
    if not detector.is_alive(now):
        return f"no gateway detects since {detector.held_until:%Y-%m-%d %H:%M:%S}"
    return detector.trouble
