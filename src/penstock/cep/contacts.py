"""Visits and meetings at work: what requests ask of the stays that are kept.

Rules that hold here:
- Samples raise nothing; a request raises the stays of whom it is about, and the meetings
  that they led to, where somebody waits for what is made of them: a plan, an operator that
  remembers, or an action that this request is for. Looking them up for nobody would cost
  the more the more contacts a case has.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from penstock.cep.nodes import NONE, Detections, Feed, Node
from penstock.cep.operators import Visits
from penstock.cep.presence import Presence
from penstock.cep.rows import Row, Shared

SAMPLES = 0
"""The input that brings samples; the other brings requests."""


class VisitsNode(Node):
    """Keeps stays, and raises those that a request asks for."""

    def __init__(self, index: int, shared: Shared, spec: Visits) -> None:
        super().__init__(index, shared)
        self.who = spec.who
        self.place = spec.place
        self.presence = Presence(spec.every, spec.within, shared.limits.stays)
        self.awaited = True
        """Whether somebody waits for visits with every request."""
        self.answers: frozenset[str] = frozenset()
        """The event types that are made of visits."""
        self.asked_for: frozenset[str] = frozenset()
        """The event types that the actions of the present request need."""

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Take samples and answer requests."""
        inbox, self.inbox = self.inbox, []
        who, place = self.who, self.place
        add = self.presence.add
        asked = []
        for slot, added, _, again in inbox:
            if slot == SAMPLES:
                for row in added:
                    values = row.values
                    add(values[who], values[place], row.at)
            elif self.awaited or self.answers & self.asked_for:
                asked += [(row.values[who], row.at) for row in (*added, *again)]
        if self.presence.dropped:
            self.shared.counts["dropped_days"] += self.presence.dropped
            self.presence.dropped = 0
        if asked:
            rows = [row for person, at in asked for row in self._rows(person, at)]
            if rows:
                self.emit(detected, rows, NONE, NONE)

    @override
    def feeder(self, slot: int) -> Feed:
        if slot != SAMPLES:
            return super().feeder(slot)
        who, place, presence = self.who, self.place, self.presence

        def feed(row: Row, detected: Detections, quiet: Detections) -> bool:  # noqa: ARG001
            values = row.values
            presence.add(values[who], values[place], row.at)
            return False

        return feed

    def _rows(self, person: str, at: int) -> list[Row]:
        presence = self.presence
        return [
            self.shared.row(
                at,
                {
                    self.who: person,
                    self.place: stay.place,
                    "time": presence.time_of(stay.first),
                    "date": presence.date_of(stay.first),
                    "duration": (stay.last - stay.first + 1) * presence.every / 1000,
                    "at": at,
                },
            )
            for stay in presence.visits(person, self.shared.now)
        ]

    def save(self) -> Any:
        """Return all stays."""
        return self.presence.save()

    def load(self, state: Any) -> None:
        """Take the stays back."""
        self.presence.load(state)


class MeetingsNode(Node):
    """Raises the meetings of those whose visits a request brought."""

    def __init__(self, index: int, shared: Shared, visits: VisitsNode) -> None:
        super().__init__(index, shared)
        self._visits = visits

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Find whom the visitors of this step met."""
        inbox, self.inbox = self.inbox, []
        visits, presence = self._visits, self._visits.presence
        asked: dict[tuple[str, int], None] = {}
        for _, added, _, _ in inbox:
            for row in added:
                asked[row.values[visits.who], row.at] = None
        rows = [
            self.shared.row(
                at,
                {
                    visits.who: person,
                    "other": meeting.other,
                    visits.place: meeting.place,
                    "time": presence.time_of(meeting.first),
                    "date": presence.date_of(meeting.first),
                    "duration": meeting.ticks * presence.every / 1000,
                    "at": at,
                },
            )
            for person, at in asked
            for meeting in presence.meetings(person, self.shared.now)
        ]
        self.emit(detected, rows, NONE, NONE)
