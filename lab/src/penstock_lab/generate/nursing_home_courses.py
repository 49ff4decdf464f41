"""What happens to the health of those who live in a nursing home.

A course is what a body does: phases with their own vital signs, and when a virus can be
found. What the house makes of it follows from the plans alone, never from here.

Rules that hold here:
- Time is in hours since the house was opened, at midnight of day 0.
- The first patients have courses of their own: together they lead along every evolution of
  both plans within ten days, whatever the seed (see `SCRIPTS`).
- The others draw a course each. Nobody infects anybody: cases are independent.
- What is measured lies on the side of the thresholds where the phase puts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

DAY: Final = 24.0


class Signs(NamedTuple):
    """Vital signs: degrees Celsius, breaths per minute, percent."""

    temperature: float
    respiratory: float
    saturation: float


HEALTHY: Final = Signs(36.6, 16.0, 97.8)
SPREAD: Final = Signs(0.2, 2.0, 0.8)
"""How far single measurements lie from what the body does, at most."""


class Phase(NamedTuple):
    """From one hour to another the body tends to these signs; they come within `onset` hours."""

    start: float
    end: float
    signs: Signs
    onset: float = 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """What the body does, and how quickly the laboratory answers for this patient."""

    phases: tuple[Phase, ...] = ()
    infected: tuple[float, float] | None = None
    turnaround: float = 12.0
    """Hours from a warning to the result of its test."""
    secluded: bool = False
    """Whether the patient keeps to the room, and so meets nobody."""

    def signs(self, hour: float) -> Signs:
        """Return what the body does at an hour."""
        temperature, respiratory, saturation = HEALTHY
        for start, end, signs, onset in self.phases:
            if start <= hour < end:
                share = 1.0 if onset <= 0 else min(1.0, (hour - start) / onset)
                # Of phases at one time each sign is the worst.
                temperature = max(temperature, _between(HEALTHY[0], signs[0], share))
                respiratory = max(respiratory, _between(HEALTHY[1], signs[1], share))
                saturation = min(saturation, _between(HEALTHY[2], signs[2], share))
        return Signs(temperature, respiratory, saturation)

    def is_infected(self, hour: float) -> bool:
        """Say whether a test of a sample of this hour is positive."""
        return self.infected is not None and self.infected[0] <= hour < self.infected[1]


def _between(usual: float, there: float, share: float) -> float:
    return usual + (there - usual) * share


def measure(course: Course, hour: float, draw: Random) -> Signs:
    """Return what sensors show at an hour."""
    body = course.signs(hour)
    return Signs(
        round(body.temperature + draw.uniform(-1, 1) * SPREAD.temperature, 1),
        float(round(body.respiratory + draw.uniform(-1, 1) * SPREAD.respiratory)),
        round(min(100.0, body.saturation + draw.uniform(-1, 1) * SPREAD.saturation), 1),
    )


FEVER: Final = Signs(38.9, 18.0, 97.8)
SHORT_OF_BREATH: Final = Signs(36.6, 28.5, 97.8)
GASPING: Final = Signs(38.9, 35.0, 97.8)
LITTLE_OXYGEN: Final = Signs(36.6, 16.0, 92.0)


def _days(start: float, end: float, signs: Signs) -> Phase:
    return Phase(start * DAY, end * DAY, signs)


SCRIPTS: Final[tuple[Course, ...]] = (
    # Fever, a positive test: Symptomatic. Better: Asymptomatic. A relapse, severe for a
    # while, and tested negative when the fever is not yet gone.
    Course(
        phases=(_days(1.4, 2, FEVER), _days(5, 9.8, FEVER), _days(5.5, 6, GASPING)),
        infected=(0, 8.5 * DAY),
    ),
    # Contacts of the first: not infected; infected without symptoms; ill before the result.
    Course(turnaround=24.0),
    Course(infected=(0, 6 * DAY), turnaround=24.0),
    Course(phases=(_days(1.6, 4, FEVER),), infected=(0, 6 * DAY), turnaround=36.0),
    # Severe, and tested negative while still severe.
    Course(
        phases=(_days(1, 4, FEVER), _days(2, 6.5, GASPING)),
        infected=(0, 4.5 * DAY),
        secluded=True,
    ),
    # The result comes when the symptoms have gone: Asymptomatic from Suspected.
    Course(phases=(_days(2, 2.4, FEVER),), infected=(0, 7 * DAY), turnaround=72.0, secluded=True),
    # A cold: Suspected, and negative.
    Course(phases=(_days(3, 3.5, FEVER),), secluded=True),
    # Short of breath, then of oxygen; the oxygen recovers first.
    Course(phases=(_days(1, 5, SHORT_OF_BREATH), _days(2, 2.5, LITTLE_OXYGEN)), secluded=True),
    # The reverse: short of oxygen, then of breath; the breath recovers first.
    Course(phases=(_days(1, 5, LITTLE_OXYGEN), _days(2, 2.5, SHORT_OF_BREATH)), secluded=True),
)


def draw_course(draw: Random, days: float) -> Course:
    """Draw a course for one of the many."""
    kind = draw.choices(("well", "cold", "lungs", "covid"), (72, 9, 6, 13))[0]
    start = draw.uniform(0.5, max(1.0, days - 1)) * DAY
    secluded = draw.random() < SECLUDED
    if kind == "cold":
        signs = Signs(draw.uniform(38.3, 39.2), 18.0, 97.0)
        end = start + draw.uniform(12, 60)
        return Course((Phase(start, end, signs, draw.uniform(0, 12)),), secluded=secluded)
    if kind == "lungs":
        return Course(_draw_lungs(draw, start), secluded=secluded)
    if kind == "covid":
        return _draw_covid(draw, start, secluded=secluded)
    return Course(secluded=secluded, turnaround=draw.uniform(8, 30))


SECLUDED: Final = 0.15
"""The share of those who keep to their rooms."""


def _draw_lungs(draw: Random, start: float) -> tuple[Phase, ...]:
    """Draw an illness of the lungs: breath, oxygen, or both, one after the other."""
    breath = Signs(36.8, draw.uniform(28, 30), 97.0)
    oxygen = Signs(36.8, 18.0, draw.uniform(90, 93))
    first, second = (breath, oxygen) if draw.random() < 0.5 else (oxygen, breath)  # noqa: PLR2004
    onset = draw.uniform(4, 24)
    phases = [Phase(start, start + draw.uniform(24, 96), first, onset)]
    if draw.random() < BOTH:
        later = start + draw.uniform(6, 36)
        phases.append(Phase(later, later + draw.uniform(12, 72), second, onset))
    return tuple(phases)


BOTH: Final = 0.6
"""The share of illnesses of the lungs with both signs."""


def _draw_covid(draw: Random, start: float, *, secluded: bool) -> Course:
    severity = draw.choices(("none", "mild", "severe"), (35, 45, 20))[0]
    infected = (start, start + draw.uniform(5, 14) * DAY)
    phases: list[Phase] = []
    ill = start + draw.uniform(1, 4) * DAY
    if severity != "none":
        signs = Signs(draw.uniform(38.3, 39.8), draw.uniform(19, 23), draw.uniform(95, 97))
        phases.append(Phase(ill, ill + draw.uniform(1, 6) * DAY, signs, draw.uniform(2, 18)))
    if severity == "severe":
        worse = ill + draw.uniform(1, 3) * DAY
        signs = Signs(38.6, draw.uniform(34, 38), draw.uniform(87, 92))
        phases.append(Phase(worse, worse + draw.uniform(1, 5) * DAY, signs, draw.uniform(6, 24)))
    return Course(tuple(phases), infected, draw.uniform(6, 60), secluded)
