"""A naive model of the nursing home: everything is recomputed from the full history.

It knows the tables and figures of the case study, not the operators: readings are plain
lists, windows are comprehensions, whereabouts are sets of seconds, and what holds is asked
anew at every moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from tests.support.nursing_home.program import (
    COVID,
    COVID_ORDER,
    DAY,
    EPOCH,
    NOTIFIES,
    PUBLISHER,
    PULMONARY,
    PULMONARY_ORDER,
    READINGS,
    WARNS,
    Table,
)

Spot: TypeAlias = tuple[str, int]
"""A room, and a second in which somebody was there."""
Event: TypeAlias = tuple[Any, ...]
"""The name of a type, and all that an event of it says, by name."""

TOUCHED = {
    "temperature": {"Symptom", "NoSymptom"},
    "respiratory": {"Symptom", "NoSymptom", "SevereSymptom", "NoSevereSymptom"}
    | {"Breathlessness", "NormalBreathRate"},
    "saturation": {"Symptom", "NoSymptom", "BelowThresholdO2", "NormalO2Level"},
}
"""What a reading raises again while it holds."""


def make_event(name: str, **values: Any) -> Event:
    return name, *sorted(values.items())


def tell(at: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at)


def is_symptom(word: str, value: float) -> bool:
    if word == "saturation":
        return value < 95
    return value >= (38 if word == "temperature" else 25)


def read_test_date(text: str) -> datetime:
    """Read when a sample was taken: a moment, or a day, which counts at its end."""
    if len(text) == len("2027-01-01"):
        return datetime.fromisoformat(f"{text}T00:00:00Z") + timedelta(days=1)
    return datetime.fromisoformat(text)


def tell_date(day: int) -> int:
    return int(tell(day * DAY).strftime("%Y%m%d"))


class Held(NamedTuple):
    """Something that holds: what makes it the same as before, and what it says."""

    key: Any
    values: dict[str, Any]


@dataclass
class Patient:
    """The full history of one patient."""

    pid: str
    readings: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {word: [] for word in READINGS}
    )
    presence: dict[int, set[Spot]] = field(default_factory=dict)
    """By day, so that old days need not be looked at."""
    sampled: dict[tuple[int, str], int] = field(default_factory=dict)
    """When the patient was last noted in a room, by day and room."""
    prescriptions: list[int] = field(default_factory=list)
    activations: list[int] = field(default_factory=list)
    results: list[tuple[datetime, int, bool]] = field(default_factory=list)
    came: list[datetime] = field(default_factory=list)
    """When results came."""
    case: dict[str, str | None] = field(default_factory=lambda: {"covid": None, "pulmonary": None})
    held: dict[str, Held] = field(default_factory=dict)
    episode: int = 0
    """How often symptoms have begun."""
    bad: list[int] = field(default_factory=list)
    """When readings were symptoms."""

    def recent(self, word: str, now: int) -> list[float]:
        readings = self.readings[word]
        since = bisect_right(readings, now - 2 * DAY, key=lambda it: it[0])
        return [value for _, value in readings[since:]]

    def spots(self, now: int) -> dict[int, set[Spot]]:
        """Return where the patient was in the last 10 days, day by day."""
        since = now - 10 * DAY
        days = {day: self.presence.get(day, set()) for day in range(since // DAY, now // DAY + 1)}
        return {day: {it for it in spots if it[1] * 1000 > since} for day, spots in days.items()}

    def begin_to_hold(self, now: int) -> set[str]:
        """Ask anew what holds; return what did not before, or was something else."""
        before = self.held
        self.held = self._signs(now)
        if "Symptom" in self.held and "Symptom" not in before:
            self.episode += 1
        self.held |= self._tests()
        self.held |= self._new_symptom()
        return {
            name
            for name, it in self.held.items()
            if name not in before or before[name].key != it.key
        }

    def _signs(self, now: int) -> dict[str, Held]:
        temps = self.recent("temperature", now)
        rates = self.recent("respiratory", now)
        oxygen = self.recent("saturation", now)
        feverish, highest = max(temps, default=0) >= 38, max(rates, default=0)
        found: dict[str, dict[str, Any]] = {}
        if feverish or highest >= 25 or min(oxygen, default=99) < 95:
            found["Symptom"] = {}
        elif temps and rates and oxygen:
            found["NoSymptom"] = {}
        if rates:
            found |= (
                {"SevereSymptom": {"bpm": highest}} if highest > 30 else {"NoSevereSymptom": {}}
            )
            found |= (
                {"Breathlessness": {"bpm": highest}} if highest > 25 else {"NormalBreathRate": {}}
            )
        if oxygen:
            found["BelowThresholdO2" if min(oxygen) < 95 else "NormalO2Level"] = {}
        return {name: Held(None, values) for name, values in found.items()}

    def _tests(self) -> dict[str, Held]:
        """Tell what holds of tests. Two requests may wait at once: each is an UnderTest."""
        answered = {request for _, request, _ in self.results}
        found: dict[str, Held] = {}
        for name, requests in (
            ("UnderTest/prescription", self.prescriptions),
            ("UnderTest/activation", self.activations),
        ):
            if requests and requests[-1] not in answered:
                found[name] = Held(len(requests), {})
        waits = bool(found)
        if self.results:
            # The newest by the date of the test; of equals the one that came last.
            number, last = max(enumerate(self.results), key=lambda item: (item[1][0], item[0]))
            tested, request, positive = last
            said = {"testDate": tested, "reqId": request, "result": positive}
            found["LastTest"] = Held(number, said)
            if not positive:
                came = self.came[number]
                day = timedelta(hours=25)
                found["Cleared"] = Held(number, {"time": tested if tested <= came + day else came})
            if not waits:
                found |= self._outcome(number, positive=positive)
        return found

    def _new_symptom(self) -> dict[str, Held]:
        """Tell whether the last reading that is a symptom is newer than a negative last test."""
        if "Symptom" not in self.held:
            return {}
        cleared = self.held.get("Cleared")
        if cleared is not None and tell(self.bad[-1]) <= cleared.values["time"]:
            return {}
        return {"NewSymptom": Held((len(self.bad), self.episode), {})}

    def _outcome(self, number: int, *, positive: bool) -> dict[str, Held]:
        if not positive:
            return {"Negative": Held(number, {})}
        if "Symptom" in self.held:
            kind, key = "PositiveWithSymptoms", (number, self.episode)
        else:
            kind, key = "PositiveWithoutSymptoms", (number, 0)
        return {"Positive": Held(number, {}), kind: Held(key, {})}


class Model:
    """The nursing home, recomputed from the start for every question.

    Where stays are `awaited`, requests raise them and the meetings that they led to.
    """

    def __init__(self, *, awaited: bool) -> None:
        self.now = 0
        self.patients: dict[str, Patient] = {}
        self.transitions: list[tuple[str, str, str | None, str | None, int]] = []
        self.published: list[tuple[str, str]] = []
        self.raised: list[Event] = []
        self.taken: Counter[tuple[str, str | None, str]] = Counter()
        """How often each evolution was: scenario, source, event."""
        self.told: Counter[tuple[str | None, str | None]] = Counter()
        """How many were told to be a close contact, by the step of whom they were close to."""
        self.involved: dict[str, set[str]] = {}
        """Whom a scenario is followed for; one that is not named, for everybody."""
        self._awaited = awaited
        self._leaving: list[tuple[int, str]] = []

    def advance(self, at: int) -> None:
        """Let time pass: stop wherever a reading leaves its window."""
        at = max(at, self.now)
        while self._leaving and self._leaving[0][0] <= at:
            self.now = self._leaving[0][0]
            due = {pid for when, pid in self._leaving if when == self.now}
            self._leaving = [item for item in self._leaving if item[0] != self.now]
            for pid in sorted(due):
                self._settle(self.patients[pid], set(), None)
        self.now = at

    def _stay(self, patient: Patient, room: str) -> None:
        """Note the second of a sample, and those since the last one if it is not too long ago."""
        day = self.now // DAY
        last = patient.sampled.get((day, room), 0)
        first = last if self.now - last <= 1500 else self.now
        patient.sampled[day, room] = self.now
        seconds = range(first // 1000, self.now // 1000 + 1)
        patient.presence.setdefault(day, set()).update((room, second) for second in seconds)

    def take(self, word: str, payload: dict[str, Any], at: int) -> None:
        """Take a packet."""
        self.advance(at)
        pid = payload["pid"]
        patient = self.patients.setdefault(pid, Patient(pid))
        said: dict[str, Any] = {"pid": pid, "time": tell(self.now)}
        if word == "location":
            self._stay(patient, payload["location"])
            self.raised.append(make_event("Location", pos=payload["location"], **said))
            return  # nothing else follows from where somebody is, before a request asks
        if word in READINGS:
            patient.readings[word].append((self.now, payload[word]))
            self._leaving.append((self.now + 2 * DAY, pid))
            name, attribute = READINGS[word]
            if is_symptom(word, payload[word]):
                patient.bad.append(self.now)
                self.raised.append(make_event("SymptomReading", **said))
            said |= {attribute: payload[word]}
        elif word == "prescription":
            name = "Prescription"
            patient.prescriptions.append(payload["reqId"])
            said |= {
                "reqId": payload["reqId"],
                "tDate": read_test_date(payload["testDate"]),
            }
        elif word == "result":
            name = "Result"
            tested = read_test_date(payload["testDate"])
            patient.came.append(tell(self.now))
            patient.results.append((tested, payload["reqId"], payload["result"]))
            said |= {"reqId": payload["reqId"], "tDate": tested, "result": payload["result"]}
        else:
            name = "ContactNotice"
        self.raised.append(make_event(name, **said))
        self._settle(patient, TOUCHED.get(word, set()) | {name}, PUBLISHER)

    def _settle(self, patient: Patient, touched: set[str], publisher: str | None) -> None:
        """Raise what an event touches and what begins to hold; let the cases evolve."""
        raised = patient.begin_to_hold(self.now) | (touched & patient.held.keys())
        self._raise(patient, raised)
        orders = (("covid", COVID, COVID_ORDER), ("pulmonary", PULMONARY, PULMONARY_ORDER))
        for scenario, table, order in orders:
            for name in order:
                happened = name == "ContactNotice" and name in touched
                if happened or (name in raised and name in patient.held):
                    self._evolve(patient, scenario, table, name, publisher)

    def _raise(self, patient: Patient, names: set[str]) -> None:
        for name in names:
            values = patient.held[name].values
            self.raised.append(make_event(name.partition("/")[0], pid=patient.pid, **values))

    def _evolve(
        self, patient: Patient, scenario: str, table: Table, name: str, publisher: str | None
    ) -> None:
        source = patient.case[scenario]
        if (source, name) not in table:
            return
        if patient.pid not in self.involved.get(scenario, {patient.pid}):
            return
        target = patient.case[scenario] = table[source, name]
        self.transitions.append((scenario, patient.pid, source, target, self.now))
        self.taken[scenario, source, name] += 1
        step = source, target
        if scenario != "covid" or step not in WARNS | NOTIFIES:
            return
        self._raise_request(patient.pid, target, publisher)
        if step in WARNS:
            patient.activations.append(self.now)
            self.raised.append(make_event("Activation", pid=patient.pid, reqId=self.now))
            self.published.append(("warning", patient.pid))
        self._raise(patient, patient.begin_to_hold(self.now))
        if self._awaited:
            self._raise_stays(patient)
        close = self._meet(patient)
        if step in NOTIFIES:
            # Sums of meetings are made for who asks for them: an action that notifies.
            self.raised += close
            notices = {("closecontact", dict(it[1:])["pid"]) for it in close}
            self.published += sorted(notices)
            self.told[step] += len(notices)

    def _raise_request(self, pid: str, situation: str | None, publisher: str | None) -> None:
        unknown = dict.fromkeys(("cid", "groups", "pSet", "relativeOf"))
        self.raised.append(
            make_event(
                "ReqAttSet", pid=pid, situation=situation, ts=self.now, uid=publisher, **unknown
            )
        )

    def _raise_stays(self, patient: Patient) -> None:
        """Raise each stay: seconds of one day in one room without a gap."""
        for day, spots in patient.spots(self.now).items():
            for room, first in spots:
                if (room, first - 1) in spots:
                    continue
                last = first
                while (room, last + 1) in spots:
                    last += 1
                said = {"pos": room, "time": tell(first * 1000), "duration": last - first + 1}
                said |= {"date": tell_date(day), "ts": self.now}
                self.raised.append(make_event("VisitedRoom", pid=patient.pid, **said))

    def _meet(self, patient: Patient) -> list[Event]:
        """Return who was close to a patient, on which day: count the seconds together."""
        found = []
        for day, mine in patient.spots(self.now).items():
            for other in self.patients.values():
                shared = mine & other.presence.get(day, set()) if other is not patient else None
                if not shared:
                    continue
                said: dict[str, Any] = {"pid": other.pid, "rpid": patient.pid}
                said |= {"date": tell_date(day), "ts": self.now}
                if self._awaited:
                    for room, seconds in Counter(room for room, _ in shared).items():
                        first = tell(min(it for where, it in shared if where == room) * 1000)
                        met = {"pos": room, "time": first, "duration": seconds}
                        self.raised.append(make_event("Contact", **said, **met))
                if len(shared) > 900:
                    found.append(make_event("CloseContact", **said, duration=len(shared)))
        return found
