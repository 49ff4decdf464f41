"""A naive model of the nursing home: everything is recomputed from the full history.

It knows the tables and figures of the case study, not the operators: readings are plain
lists, windows are comprehensions, and what holds is asked anew at every moment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.cep.binding import Packet
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_paths
from penstock.definitions.events import compile_program

DAYS_2 = 2 * 86_400_000
DAYS_10 = 10 * 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_800_000_000_000
FOLDER = Path(__file__).parents[2] / "src/penstock/demo/nursing_home"

READINGS = {"temperature": "Temperature", "respiratory": "RespiratoryRate"}
READINGS |= {"saturation": "EstimatedSpO2"}
TOPICS = {
    **{word: f"physiological/{word}" for word in READINGS},
    "location": "location",
    "prescription": "prescription",
    "result": "result",
    "closecontact": "closecontact",
}
# Figure 5 and figure 2: (situation, event) → situation. None is inactive.
COVID: dict[tuple[str | None, str], str | None] = {
    (None, "Symptom"): "Suspected",
    (None, "ContactNotice"): "Possible",
    ("Suspected", "PositiveWithSymptoms"): "Symptomatic",
    ("Suspected", "PositiveWithoutSymptoms"): "Asymptomatic",
    ("Possible", "PositiveWithSymptoms"): "Symptomatic",
    ("Possible", "PositiveWithoutSymptoms"): "Asymptomatic",
    ("Symptomatic", "NoSymptom"): "Asymptomatic",
    ("Asymptomatic", "Symptom"): "Symptomatic",
    ("Symptomatic", "SevereSymptom"): "Severe",
    ("Severe", "NoSevereSymptom"): "Symptomatic",
    **{(name, "Negative"): None
       for name in ("Possible", "Suspected", "Asymptomatic", "Symptomatic", "Severe")},
}  # fmt: skip
PULMONARY: dict[tuple[str | None, str], str | None] = {
    (None, "Breathlessness"): "Dyspnea",
    (None, "BelowThresholdO2"): "LowOxygenSaturation",
    ("Dyspnea", "NormalBreathRate"): None,
    ("LowOxygenSaturation", "NormalO2Level"): None,
    ("Dyspnea", "BelowThresholdO2"): "DyspneaOxygen",
    ("DyspneaOxygen", "NormalO2Level"): "Dyspnea",
    ("LowOxygenSaturation", "Breathlessness"): "DyspneaOxygen",
    ("DyspneaOxygen", "NormalBreathRate"): "LowOxygenSaturation",
}
COVID_ORDER = [
    "Negative",
    "PositiveWithSymptoms",
    "PositiveWithoutSymptoms",
    "Symptom",
    "NoSevereSymptom",
    "ContactNotice",
    "NoSymptom",
    "SevereSymptom",
]
PULMONARY_ORDER = ["Breathlessness", "BelowThresholdO2", "NormalBreathRate", "NormalO2Level"]
WARNS = {(None, "Suspected"), (None, "Possible")}
NOTIFIES = {
    (None, "Suspected"),
    ("Suspected", "Asymptomatic"),
    ("Possible", "Asymptomatic"),
    ("Possible", "Symptomatic"),
}


def load_program() -> Program:
    """Compile the definitions of the case study."""
    reading = read_paths([str(FOLDER)])
    return compile_program(DefinitionSet.build(reading.documents, reading.locate).definitions)


def make_packet(word: str, payload: dict[str, Any], at: int, **more: Any) -> Packet:
    """Make the packet that the gateway would make of a message."""
    topic = TOPICS.get(word, word)
    return Packet(
        topic,
        {"topic": topic, "payload": payload},
        {"uid": "someone"},
        {"patientId": payload.get("pid")},
        {"time": EPOCH + timedelta(milliseconds=at)},
        **more,
    )


@dataclass
class Patient:
    """The full history of one patient."""

    readings: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {word: [] for word in READINGS}
    )
    presence: set[tuple[str, int]] = field(default_factory=set)
    prescriptions: list[tuple[datetime, int, int]] = field(default_factory=list)
    activations: list[int] = field(default_factory=list)
    results: list[tuple[datetime, int, int, bool]] = field(default_factory=list)
    case: dict[str, str | None] = field(default_factory=lambda: {"covid": None, "pulmonary": None})
    held: dict[str, Any] = field(default_factory=dict)
    episode: int = 0

    def recent(self, word: str, now: int) -> list[float]:
        return [value for at, value in self.readings[word] if now - DAYS_2 < at <= now]

    def holds(self, now: int) -> dict[str, Any]:
        """Tell what holds now: the event types, and what makes each instance the same."""
        temps = self.recent("temperature", now)
        rates = self.recent("respiratory", now)
        oxygen = self.recent("saturation", now)
        found: dict[str, Any] = {}
        if (
            max(temps, default=0) >= 38
            or max(rates, default=0) >= 25
            or min(oxygen, default=99) < 95
        ):
            found["Symptom"] = True
        if temps and rates and oxygen and "Symptom" not in found:
            found["NoSymptom"] = True
        if rates:
            found["SevereSymptom" if max(rates) > 30 else "NoSevereSymptom"] = True
            found["Breathlessness" if max(rates) > 25 else "NormalBreathRate"] = True
        if oxygen:
            found["BelowThresholdO2" if min(oxygen) < 95 else "NormalO2Level"] = True
        if "Symptom" in found and "Symptom" not in self.held:
            self.episode += 1
        return found | self._holds_of_tests(symptom="Symptom" in found)

    def _holds_of_tests(self, *, symptom: bool) -> dict[str, Any]:
        answered = {request for _, _, request, _ in self.results}
        waits = bool(self.activations) and self.activations[-1] not in answered
        if self.prescriptions:
            # The newest by time; of equals the one that came last.
            newest = max(enumerate(self.prescriptions), key=lambda item: (item[1][0], item[0]))[1]
            waits = waits or newest[1] not in answered
        found: dict[str, Any] = {}
        if self.results and not waits:
            number, last = max(enumerate(self.results), key=lambda item: (item[1][0], item[0]))
            found["Positive" if last[3] else "Negative"] = number
            if last[3]:
                kind = "PositiveWithSymptoms" if symptom else "PositiveWithoutSymptoms"
                found[kind] = (number, self.episode) if symptom else number
        return found


class Model:
    """The nursing home, recomputed from the start for every question."""

    def __init__(self) -> None:
        self.now = 0
        self.patients: dict[str, Patient] = {}
        self.transitions: list[tuple[str, str, str | None, str | None, int]] = []
        self.published: list[tuple[str, str]] = []
        self.raised: list[tuple[str, str]] = []
        self.leaving: list[tuple[int, str]] = []

    def advance(self, at: int) -> None:
        """Let time pass: stop wherever a reading leaves its window."""
        at = max(at, self.now)
        while self.leaving and self.leaving[0][0] <= at:
            self.now = self.leaving[0][0]
            due = {pid for when, pid in self.leaving if when == self.now}
            self.leaving = [item for item in self.leaving if item[0] != self.now]
            for pid in sorted(due):
                self._settle(pid, set())
        self.now = at

    def take(self, word: str, payload: dict[str, Any], at: int) -> None:
        """Take a packet."""
        self.advance(at)
        pid = payload["pid"]
        patient = self.patients.setdefault(pid, Patient())
        moment = EPOCH + timedelta(milliseconds=at)
        always: set[str] = set()
        if word in READINGS:
            patient.readings[word].append((self.now, float(payload[word])))
            self.leaving.append((self.now + DAYS_2, pid))
            always = {READINGS[word], "Symptom", "NoSymptom"}
            if word == "respiratory":
                always |= {"SevereSymptom", "NoSevereSymptom"}
                always |= {"Breathlessness", "NormalBreathRate"}
            if word == "saturation":
                always |= {"BelowThresholdO2", "NormalO2Level"}
        elif word == "location":
            patient.presence.add((payload["location"], self.now // 1000))
            always = {"Location"}
        elif word == "prescription":
            patient.prescriptions.append((moment, payload["reqId"], at))
            always = {"Prescription"}
        elif word == "result":
            tested = datetime.fromisoformat(payload["testDate"])
            patient.results.append((tested, at, payload["reqId"], payload["result"]))
            always = {"Result"}
        elif word == "closecontact":
            always = {"ContactNotice"}
        self._settle(pid, always)

    def _settle(self, pid: str, always: set[str]) -> None:
        """Raise what an event touches and what begins to hold; let the cases evolve."""
        patient = self.patients[pid]
        raised = self._begin_to_hold(patient)
        holds = patient.held
        raised |= {name for name in always if name in holds}
        raised |= always & {"Temperature", "RespiratoryRate", "EstimatedSpO2", "Location"}
        raised |= always & {"Prescription", "Result", "ContactNotice"}
        self.raised += [(name, pid) for name in raised]
        orders = (("covid", COVID, COVID_ORDER), ("pulmonary", PULMONARY, PULMONARY_ORDER))
        for scenario, table, order in orders:
            for name in order:
                if name in raised and (name in patient.held or name == "ContactNotice"):
                    self._evolve(pid, scenario, table, name)

    def _begin_to_hold(self, patient: Patient) -> set[str]:
        before = patient.held
        patient.held = patient.holds(self.now)
        return {name for name, what in patient.held.items() if before.get(name) != what}

    def _evolve(
        self,
        pid: str,
        scenario: str,
        table: dict[tuple[str | None, str], str | None],
        name: str,
    ) -> None:
        patient = self.patients[pid]
        source = patient.case[scenario]
        if (source, name) not in table:
            return
        target = patient.case[scenario] = table[source, name]
        self.transitions.append((scenario, pid, source, target, self.now))
        if scenario != "covid" or (source, target) not in WARNS | NOTIFIES:
            return
        if (source, target) in WARNS:
            patient.activations.append(self.now)
            self.published.append(("warning", pid))
        self._begin_to_hold(patient)
        if (source, target) in NOTIFIES:
            self.published += [("closecontact", other) for other in self._close_contacts(pid)]

    def _close_contacts(self, pid: str) -> list[str]:
        """Count seconds together, day by day."""
        mine = {spot for spot in self.patients[pid].presence if spot[1] * 1000 > self.now - DAYS_10}
        found = []
        for other, patient in self.patients.items():
            if other == pid:
                continue
            days: dict[int, int] = {}
            for _, second in mine & patient.presence:
                days[second // 86_400] = days.get(second // 86_400, 0) + 1
            if any(seconds > 900 for seconds in days.values()):
                found.append(other)
        return sorted(found)


def draw_message(draw: random.Random, known: list[int]) -> tuple[str, dict[str, Any]]:
    """Draw a message of one of six patients; `known` are the requests that wait."""
    pid = f"patient-{draw.randrange(6)}"
    word = draw.choices([*READINGS, "prescription", "result", "closecontact"], [6, 6, 6, 1, 3, 1])[
        0
    ]
    if word == "temperature":
        return word, {"pid": pid, word: round(draw.gauss(37.0, 0.6), 1)}
    if word == "respiratory":
        return word, {"pid": pid, word: draw.choice([14, 16, 18, 20, 22, 25, 26, 30, 31, 35])}
    if word == "saturation":
        return word, {"pid": pid, word: draw.choice([99, 98, 97, 96, 95, 94.5, 93])}
    if word == "closecontact":
        return word, {"pid": pid}
    request = draw.choice(known) if known and draw.random() < 0.8 else draw.randrange(20)
    if word == "prescription" and draw.random() < 0.5:
        request = draw.randrange(20)
    tested = datetime(2027, 1, 1, tzinfo=UTC) + timedelta(hours=draw.randrange(2000))
    payload = {"pid": pid, "testDate": tested.isoformat(), "reqId": request}
    return word, payload | ({"result": draw.random() < 0.5} if word == "result" else {})
