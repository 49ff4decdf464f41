"""A nursing home, made up: who lives and works there, and all that is published in a month.

    courses ──▶ vital signs, bulletins ────┐
    living groups ──▶ stays in rooms ──────┼──▶ `House.messages`, in order of time
    warnings ──▶ tests ──▶ results ────────┘

Rules that hold here:
- The same seed gives the same house, message by message, as long as warnings come the same.
- Stays are kept as stays; a room's samples are made one by one as they are asked for.
- Only the rooms that a living group shares have sensors: nobody is followed to bed.
- Whoever carries the messages informs the house of warnings (`House.warn`): the laboratory
  answers them, and tests those who were positive again until they are not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from operator import itemgetter
from random import Random
from typing import Any, Final, NamedTuple

from penstock_lab.generate.nursing_home_courses import (
    HEALTHY,
    SCRIPTS,
    Course,
    draw_course,
    measure,
)

START: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1000)
HOUR: Final = 3_600_000
DAY_MS: Final = 24 * HOUR
GROUP: Final = 10
"""How many live in one group, with rooms of their own."""
LEAST: Final = GROUP
"""The fewest patients: the scripted ones, and one who stays well."""
PER_STAFF: Final = 5
PER_RELATIVE: Final = 5
PER_SPECIALIST: Final = 50
RETEST: Final = 84 * HOUR
RETEST_ANSWER: Final = 12 * HOUR
SAMPLE_AFTER: Final = 2 * HOUR
VISITS: Final = 0.1
"""How likely a patient spends an afternoon with the neighbouring group."""
# Where a day passes: from which minute to which, and how likely one is there.
ROUTINE: Final = (
    ("dining", 480, 525, 0.95),
    ("lounge", 570, 690, 0.6),
    ("dining", 720, 770, 0.95),
    ("lounge", 870, 1000, 0.55),
    ("dining", 1080, 1130, 0.95),
)
AFTERNOON: Final = 3
LATENESS: Final = 15
"""Minutes by which people come or go early or late, at most."""


class TimedMessage(NamedTuple):
    """A message: when, by whom, where, what."""

    at: int
    user: str
    topic: str
    payload: dict[str, Any]


class Stay(NamedTuple):
    """A patient is in a room, from a millisecond on until another."""

    first: int
    last: int
    patient: str
    room: str


@dataclass(frozen=True, slots=True)
class People:
    """Who is there, and who has to do with whom."""

    patients: tuple[str, ...]
    treated: dict[str, tuple[str, ...]]
    """The patients of each member of the staff."""
    relatives: dict[str, str]
    guardians: frozenset[str]
    specialists: tuple[str, ...]
    rooms: tuple[str, ...]

    @classmethod
    def settle(cls, patients: int) -> People:
        """Return the people of a house of this size, as the case study has them."""
        names = tuple(f"patient-{number + 1}" for number in range(patients))
        groups = -(-patients // GROUP)
        staff = max(2, patients // PER_STAFF)
        treated: dict[str, list[str]] = {f"physician-{it + 1}": [] for it in range(staff)}
        members = list(treated)
        for number, name in enumerate(names):
            # Two for each, so that somebody is there; both of the group's own.
            treated[members[number // PER_STAFF % staff]].append(name)
            treated[members[(number // PER_STAFF + 1) % staff]].append(name)
        relatives = {
            f"relative-{it + 1}": names[it * PER_RELATIVE % patients]
            for it in range(max(1, patients // PER_RELATIVE))
        }
        return cls(
            names,
            {name: tuple(dict.fromkeys(held)) for name, held in treated.items()},
            relatives,
            frozenset(list(relatives)[::2]),
            tuple(f"specialist-{it + 1}" for it in range(max(1, patients // PER_SPECIALIST))),
            tuple(f"{room}-{it + 1}" for it in range(groups) for room in ("dining", "lounge")),
        )

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield the groups and attributes of all, as documents."""
        guardians = sorted(self.guardians)
        groups: dict[str, tuple[str, ...] | list[str]] = {
            "patient": self.patients,
            "medical_personnel": list(self.treated),
            "external_specialist": self.specialists,
            "guardian": guardians,
            "relative": [name for name in self.relatives if name not in self.guardians],
            "sensor": [sensor_of(name) for name in self.patients],
            "proximity_sensor": self.rooms,
            "laboratory": ["laboratory"],
        }
        for group, members in groups.items():
            more = {"includes": ["guardian"]} if group == "relative" else {}
            users = [f"user:{name}" for name in members]
            yield {"kind": "group", "name": group, "members": users, **more}
        for name, held in self.treated.items():
            yield _describe(name, {"pSet": list(held)})
        for name, patient in self.relatives.items():
            kin = {"relativeOf": [patient]}
            yield _describe(name, kin | ({"guardianOf": [patient]} if name in guardians else {}))
        for name in self.patients:
            yield _describe(sensor_of(name), {"wearer": name}) | {"on_behalf_of": name}

    def publishers(self) -> list[str]:
        """Return all who publish."""
        sensors = [sensor_of(name) for name in self.patients]
        return [*sensors, *self.rooms, *self.treated, "laboratory"]


def _describe(user: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "attributes", "name": f"user:{user}", "values": values}


def sensor_of(patient: str) -> str:
    """Return the sensor that a patient wears."""
    return patient.replace("patient", "sensor")


class House:
    """The house through its days. `rooms_every` is the time between samples, in ms."""

    def __init__(
        self, patients: int, days: int, seed: int, *, rooms_every: int = 1000, start: int = START
    ) -> None:
        self.people = People.settle(patients)
        self.days = days
        self.start = start
        self.rooms_every = rooms_every
        self._seed = seed
        self._courses = dict(zip(self.people.patients, self._draw_courses(), strict=True))
        self._physician = {
            patient: name for name, held in self.people.treated.items() for patient in held
        }
        self._order = count()
        self._errands: list[tuple[int, int, TimedMessage]] = []
        self._requests = count(1)

    @property
    def end(self) -> int:
        """When the last day is over, in milliseconds since 1970."""
        return self.start + self.days * DAY_MS

    def course(self, patient: str) -> Course:
        """Return what the body of a patient does."""
        return self._courses[patient]

    def _draw_courses(self) -> Iterator[Course]:
        for number, name in enumerate(self.people.patients):
            if number < GROUP:
                # The first group keeps to the script: a drawn case would upset it.
                yield SCRIPTS[number] if number < len(SCRIPTS) else Course()
            else:
                yield draw_course(self._draw(name), self.days)

    def _draw(self, *of: object) -> Random:
        return Random("/".join(map(str, (self._seed, *of))))  # noqa: S311 - to be repeated

    # --- what is published ---

    def messages(self) -> Iterator[TimedMessage]:
        """Yield all messages in order of time; answers to warnings among them."""
        for day in range(self.days):
            parts = (self._vital_signs(day), self._locations(day), self._bulletins(day))
            for message in heapq.merge(*parts, key=itemgetter(0)):
                while self._errands and self._errands[0][0] <= message.at:
                    yield self._run_errand()
                yield message
        while self._errands and self._errands[0][0] < self.end:
            yield self._run_errand()

    def _vital_signs(self, day: int) -> Iterator[TimedMessage]:
        rounds = [
            (self.start + day * DAY_MS + hour * HOUR + self._minute(name) * 60_000, name)
            for name in self.people.patients
            for hour in range(24)
        ]
        draw = self._draw("signs", day)
        for at, name in sorted(rounds):
            signs = measure(self._courses[name], (at - self.start) / HOUR, draw)
            sensor = sensor_of(name)
            for word, value in signs._asdict().items():
                yield TimedMessage(at, sensor, f"physiological/{word}", {"pid": name, word: value})

    def signs(self) -> Iterator[tuple[str, int, float, float, float]]:
        """Yield all vital signs: patient, hour since 1970, temperature, breaths, oxygen."""
        for day in range(self.days):
            signs = self._vital_signs(day)
            for first, second, third in zip(signs, signs, signs, strict=True):
                yield (
                    first.payload["pid"],
                    first.at // HOUR,
                    first.payload["temperature"],
                    second.payload["respiratory"],
                    third.payload["saturation"],
                )

    @staticmethod
    def _minute(name: str) -> int:
        """Return when in the hour a patient is measured: not all at once."""
        return int(name.rpartition("-")[2]) * 7 % 60

    def stays(self, day: int) -> list[Stay]:
        """Return the stays in shared rooms on a day, in order."""
        draw = self._draw("rooms", day)
        groups = len(self.people.rooms) // 2
        found = []
        for number, name in enumerate(self.people.patients):
            if self._courses[name].secluded:
                continue
            for place, (room, since, until, share) in enumerate(ROUTINE):
                early, late = draw.randrange(LATENESS), draw.randrange(LATENESS)
                present, visits = draw.random() < share, draw.random() < VISITS
                group = number // GROUP
                if visits and place == AFTERNOON and group > 0:
                    # The first group has no visitors and visits nobody: see `SCRIPTS`.
                    group = max(1, (group + 1) % groups)
                if present:
                    first = self.start + day * DAY_MS + (since + early) * 60_000
                    last = self.start + day * DAY_MS + (until - late) * 60_000
                    found.append(Stay(first, last, name, f"{room}-{group + 1}"))
        return sorted(found)

    def _locations(self, day: int) -> Iterator[TimedMessage]:
        """Yield the samples of all rooms, tick by tick."""
        every = self.rooms_every
        waiting = self.stays(day)[::-1]
        present: list[Stay] = []
        at = self.start + day * DAY_MS
        while waiting or present:
            if not present:
                at = max(at, -(-waiting[-1].first // every) * every)
            while waiting and waiting[-1].first <= at:
                present.append(waiting.pop())
            present = [stay for stay in present if stay.last > at]
            for stay in present:
                payload = {"pid": stay.patient, "location": stay.room}
                yield TimedMessage(at, stay.room, "location", payload)
            at += every

    def _bulletins(self, day: int) -> Iterator[TimedMessage]:
        """Yield what physicians write about their patients in the afternoon."""
        for number, name in enumerate(self.people.patients):
            at = self.start + day * DAY_MS + 17 * HOUR + number * 1000
            ill = self._courses[name].signs((at - self.start) / HOUR) != HEALTHY
            payload = {"pid": name, "condition": "ill" if ill else "well"}
            yield TimedMessage(at, self._physician[name], "bulletin", payload)

    # --- tests ---

    def warn(self, patient: str, request: int, at: int) -> None:
        """Take a warning: the patient is tested for this request."""
        if patient in self._courses:
            answer = at + round(self._courses[patient].turnaround * HOUR)
            self._answer(patient, request, sample=at + SAMPLE_AFTER, at=answer)

    def _answer(self, patient: str, request: int, *, sample: int, at: int) -> None:
        positive = self._courses[patient].is_infected((sample - self.start) / HOUR)
        payload = {
            "pid": patient,
            "result": positive,
            "testDate": format_date(sample),
            "reqId": request,
        }
        self._send(TimedMessage(at, "laboratory", "result", payload))

    def _send(self, message: TimedMessage) -> None:
        heapq.heappush(self._errands, (message.at, next(self._order), message))

    def _run_errand(self) -> TimedMessage:
        """Take the errand that is due; what follows from it becomes another."""
        at, _, message = heapq.heappop(self._errands)
        patient = message.payload["pid"]
        if message.topic == "result" and message.payload["result"]:
            # Small numbers are requests of physicians, great ones moments of activations.
            payload = {
                "pid": patient,
                "testDate": format_date(at + RETEST),
                "reqId": next(self._requests),
            }
            self._send(TimedMessage(at + RETEST, self._physician[patient], "prescription", payload))
        elif message.topic == "prescription":
            request = message.payload["reqId"]
            self._answer(patient, request, sample=at, at=at + RETEST_ANSWER)
        return message


def format_date(at: int) -> str:
    """Return a moment as results have it."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
