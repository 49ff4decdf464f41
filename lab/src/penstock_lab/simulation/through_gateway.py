"""Lets the days of a nursing home pass through a gateway, by the clock on the wall.

Rules that hold here:
- The gateway has its own clock. Days that pass `speed` times as fast need definitions
  whose windows are as much shorter: `set_pace` makes them.
- Staff hear warnings and answer them; specialists listen to all vital signs, relatives to
  bulletins, and both are shown what situations let them see.
- Nobody publishes what they may not: a message that is refused is none of the story's.
- Each message waits for the answer to the one before. Where that takes longer than they are
  apart the house falls behind, and its windows are too short for it: whoever runs it is shown.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock_lab.demo.nursing_home.clients import Clients
from penstock_lab.generate.nursing_home import House
from penstock_lab.simulation.nursing_home import OnProgress, Pace, ignore_progress


class GatewaySimulation:
    """A house whose messages go through a gateway."""

    def __init__(self, house: House, clients: Clients) -> None:
        self.house = house
        self.clients = clients
        self.sent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._answered: set[tuple[str, int]] = set()

    def run(self, on_progress: OnProgress = ignore_progress, speed: float | None = None) -> float:
        """Let all days pass; return by how many seconds that took too long for the speed."""
        for member in self.house.people.treated:
            self.clients.listen(member, "warning", "closecontact")
        for specialist in self.house.people.specialists:
            self.clients.listen(specialist, "physiological/#")
        for relative in self.house.people.relatives:
            self.clients.listen(relative, "bulletin")
        pace = Pace(self.house, speed)
        for message in pace.messages(on_progress):
            allowed = self.clients.publish(message.user, message.topic, message.payload)
            (self.sent if allowed else self.refused)[message.topic] += 1
            self._take(message.at)
        return pace.behind

    def _take(self, at: int) -> None:
        for heard in self.clients.take():
            group = heard.user.rpartition("-")[0]
            self.received[f"{group} {heard.topic}"] += 1
            if heard.topic == "warning":
                warning = heard.payload["pid"], heard.payload["time"]
                # Two of the staff hear of each patient; one test is enough.
                if warning not in self._answered:
                    self._answered.add(warning)
                    self.house.warn(*warning, at)

    def as_dict(self) -> dict[str, Any]:
        """Return what came of it as JSON data."""
        return {
            "messages": dict(self.sent),
            "refused": dict(self.refused),
            "received": dict(sorted(self.received.items())),
            "warnings_answered": len(self._answered),
        }
