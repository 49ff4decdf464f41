"""Lets the days of a nursing home pass, and keeps count of what came of them.

Rules that hold here:
- The tally is what was seen, not what was meant: transitions are counted by evolution, and
  those that nobody went along are named.
- External specialists are asked about at every vital sign, relatives at every bulletin: they
  may read it exactly while the patient's own case allows it. A message for which that does
  not hold ends the simulation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from penstock.cep.steps import Publication, Transition
from penstock.errors import DeniedError
from penstock_lab.generate.nursing_home import HOUR, House, TimedMessage
from penstock_lab.simulation.in_process import InProcess

OPEN_TO_SPECIALISTS: Final = frozenset({"Symptomatic", "Severe"})


OnProgress = Callable[[int, float], None]
"""Hears how far a house is, in milliseconds since 1970, and how many seconds behind its speed."""


def ignore_progress(at: int, behind: float) -> None:
    """Ignore the progress."""


class Pace:
    """The messages of a house when they are due, and how far behind they are.

    Without a speed they come one after the other, and are never behind.
    """

    def __init__(self, house: House, speed: float | None) -> None:
        self.house = house
        self.speed = speed
        self.behind = 0.0
        """By how many seconds the last message came late."""

    def messages(self, on_progress: OnProgress = ignore_progress) -> Iterator[TimedMessage]:
        """Yield each message when it is due; `on_progress` hears of every hour that has passed."""
        started, shown = time.monotonic(), self.house.start
        for message in self.house.messages():
            if self.speed is not None:
                due = started + (message.at - self.house.start) / 1000 / self.speed
                early = due - time.monotonic()
                time.sleep(max(0.0, early))
                self.behind = max(0.0, -early)
            if message.at - shown >= HOUR:
                shown = message.at
                on_progress(shown, self.behind)
            yield message
        on_progress(self.house.end, self.behind)


class Step(NamedTuple):
    """An evolution of a scenario; None is inactive."""

    scenario: str
    source: str | None
    event: str
    target: str | None


SCRIPTED: Final = {
    Step("pulmonary", None, "Breathlessness", "Dyspnea"): 2,
    Step("pulmonary", None, "BelowThresholdO2", "LowOxygenSaturation"): 2,
    Step("pulmonary", "Dyspnea", "NormalBreathRate", None): 7,
    Step("pulmonary", "LowOxygenSaturation", "NormalO2Level", None): 7,
    Step("pulmonary", "Dyspnea", "BelowThresholdO2", "DyspneaOxygen"): 3,
    Step("pulmonary", "DyspneaOxygen", "NormalO2Level", "Dyspnea"): 5,
    Step("pulmonary", "LowOxygenSaturation", "Breathlessness", "DyspneaOxygen"): 3,
    Step("pulmonary", "DyspneaOxygen", "NormalBreathRate", "LowOxygenSaturation"): 5,
    Step("covid", None, "NewSymptom", "Suspected"): 2,
    Step("covid", None, "ContactNotice", "Possible"): 2,
    Step("covid", "Suspected", "Negative", None): 2,
    Step("covid", "Possible", "Negative", None): 2,
    Step("covid", "Suspected", "PositiveWithSymptoms", "Symptomatic"): 2,
    Step("covid", "Suspected", "PositiveWithoutSymptoms", "Asymptomatic"): 6,
    Step("covid", "Possible", "PositiveWithSymptoms", "Symptomatic"): 3,
    Step("covid", "Possible", "PositiveWithoutSymptoms", "Asymptomatic"): 3,
    Step("covid", "Symptomatic", "NoSymptom", "Asymptomatic"): 4,
    Step("covid", "Asymptomatic", "Symptom", "Symptomatic"): 6,
    Step("covid", "Symptomatic", "SevereSymptom", "Severe"): 3,
    Step("covid", "Severe", "NoSevereSymptom", "Symptomatic"): 8,
    Step("covid", "Asymptomatic", "Negative", None): 7,
    Step("covid", "Symptomatic", "Negative", None): 10,
    Step("covid", "Severe", "Negative", None): 6,
}
"""On which day, the first being 1, the scripted patients first go along an evolution.

Illness, tests and windows take their time: before that day only chance leads along it.
"""


class SimulationTally:
    """What came of the days."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.transitions: Counter[Step] = Counter()
        self.published: Counter[str] = Counter()
        self.shown: Counter[str] = Counter()
        self.hidden: Counter[str] = Counter()

    def missing(self, days: int) -> list[Step]:
        """Return the evolutions that nobody went along, though so many days were enough."""
        return [it for it in self._unseen() if SCRIPTED.get(it, 0) <= days]

    def not_yet(self, days: int) -> dict[Step, int]:
        """Return those that nobody went along for want of days, and on which day it is due."""
        return {it: SCRIPTED[it] for it in self._unseen() if SCRIPTED.get(it, 0) > days}

    def _unseen(self) -> list[Step]:
        return [step for step, times in self.transitions.items() if not times]

    def as_dict(self) -> dict[str, Any]:
        """Return all as JSON data."""
        return {
            "messages": dict(self.messages),
            "published_by_actions": dict(self.published),
            "transitions": [
                {"scenario": it.scenario, "from": it.source, "event": it.event, "to": it.target,
                 "count": count}
                for it, count in self.transitions.items()
            ],
            "shown": dict(self.shown),
            "hidden": dict(self.hidden),
        }  # fmt: skip


class Simulation:
    """A house whose messages are carried in process."""

    def __init__(self, house: House, carrier: InProcess) -> None:
        self.house = house
        self.carrier = carrier
        self.tally = SimulationTally()
        program = carrier.engine.program
        for scenario in program.scenarios.values():
            for it in program.plans[scenario.plan].evolutions:
                step = Step(scenario.name, it.source, it.event or "time", it.target)
                self.tally.transitions[step] = 0
        self._relatives: dict[str, list[str]] = {}
        for relative, patient in house.people.relatives.items():
            self._relatives.setdefault(patient, []).append(relative)
        carrier.on_transition = self._note
        carrier.on_publication = self._hear

    def run(self, on_progress: OnProgress = ignore_progress, speed: float | None = None) -> float:
        """Let all days pass; return by how many seconds that took too long for the speed."""
        pace = Pace(self.house, speed)
        for message in pace.messages(on_progress):
            self._publish(message)
        self.carrier.advance(self.house.end)
        return pace.behind

    def _publish(self, message: TimedMessage) -> None:
        at, user, topic, payload = message
        verdict = self.carrier.publish(at, user, topic, payload)
        if not verdict.allowed:
            raise DeniedError(
                f"{user} may not publish to {topic}: {verdict.rule}",
                fix="the definitions of the simulation must let its people publish",
            )
        self.tally.messages[topic] += 1
        patient = payload["pid"]
        situation = self.carrier.engine.current("covid", patient)
        if topic.startswith("physiological/"):
            specialist = self.house.people.specialists[0]
            self._show("specialist", specialist, message, situation in OPEN_TO_SPECIALISTS)
        elif topic == "bulletin":
            for relative in self._relatives.get(patient, ()):
                self._show("relative", relative, message, situation is not None)

    def _show(self, who: str, user: str, message: TimedMessage, opened: bool) -> None:  # noqa: FBT001
        """Ask whether somebody may read a message, and compare it with what should be."""
        _, publisher, topic, payload = message
        shown = self.carrier.may_read(user, topic, payload, publisher).allowed
        if shown is not opened:
            raise DeniedError(
                f"a message to {topic} was {'shown to' if shown else 'hidden from'} a {who}",
                fix="this is a fault of Penstock; please report it",
            )
        (self.tally.shown if shown else self.tally.hidden)[who] += 1

    def _note(self, transition: Transition) -> None:
        if transition.evolution is not None:
            event = transition.event or "time"
            step = Step(transition.scenario, transition.source, event, transition.target)
            self.tally.transitions[step] += 1

    def _hear(self, publication: Publication, at: int) -> None:
        self.tally.published[publication.topic] += 1
        if publication.topic == "warning":
            payload = publication.payload
            self.house.warn(payload["pid"], payload["time"], at)
