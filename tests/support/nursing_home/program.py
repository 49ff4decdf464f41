"""The nursing home for tests of detection: its program, its figures, random messages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from penstock.cep.event_binding import Packet
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_paths, read_text
from penstock.definitions.events.program import compile_program

HOUR = 3_600_000
DAY = 24 * HOUR
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_800_000_000_000
FOLDER = Path(__file__).parents[3] / "lab/src/penstock_lab/demo/nursing_home"

PATIENTS = [f"patient-{number}" for number in range(6)]
ROOMS = ["hall", "garden", "lounge"]
PUBLISHER = "someone"
READINGS = {
    "temperature": ("Temperature", "temp"),
    "respiratory": ("RespiratoryRate", "bpm"),
    "saturation": ("EstimatedSpO2", "SpO2"),
}
"""The event type of each reading, and the attribute that has its value."""
VALUES: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([36.4, 36.8, 37.2, 37.9], [38.0, 39.1]),
    "respiratory": ([14, 18, 22, 24], [25, 26, 30, 31, 35]),
    "saturation": ([99, 97, 96, 95], [94.5, 93]),
}
"""Values that are no symptom, and those that are; some are more than one thing."""
WEIGHTS = {**dict.fromkeys(READINGS, 6), "location": 2, "prescription": 1, "result": 6}
WEIGHTS |= {"closecontact": 1}
TOPICS = {
    **{word: f"physiological/{word}" for word in READINGS},
    "location": "location",
    "prescription": "prescription",
    "result": "result",
    "closecontact": "closecontact",
}

Table: TypeAlias = dict[tuple[str | None, str], str | None]

# Figure 5 and figure 2: (situation, event) → situation. None is inactive.
COVID: Table = {
    (None, "NewSymptom"): "Suspected",
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
PULMONARY: Table = {
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
    "NewSymptom",
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
    ("Symptomatic", "Asymptomatic"),
}


def load_program(more: str = "", replace: tuple[str, str] | None = None) -> Program:
    """Compile the definitions of the case study, and more, with one text in another's place."""
    documents = read_paths([str(FOLDER)]).documents
    if replace is not None:
        texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
        assert any(replace[0] in text for text in texts)
        documents = [it for text in texts for it in read_text(text.replace(*replace)).documents]
    added = read_text(more).documents
    instead = {it.key for it in added}
    documents = [*(it for it in documents if it.key not in instead), *added]
    return compile_program(DefinitionSet.build(documents).definitions)


def make_packet(word: str, payload: dict[str, Any], at: int, **more: Any) -> Packet:
    """Make the packet that the gateway would make of a message."""
    topic = TOPICS.get(word, word)
    return Packet(
        topic,
        {"topic": topic, "payload": payload},
        {"uid": PUBLISHER},
        {"patientId": payload.get("pid")},
        {"time": EPOCH + timedelta(milliseconds=at)},
        **more,
    )


def draw_message(
    draw: random.Random,
    known: list[int],
    asked: Mapping[str, Sequence[int]] | None = None,
    at: int = START,
) -> tuple[str, dict[str, Any]]:
    """Draw a message of one of six patients.

    `known` are requests that a test may be the answer to, or a prescription may name; `asked`
    are the last requests of each patient, which tests of these days mostly answer.
    """
    pid = draw.choice(PATIENTS)
    word = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if word in READINGS:
        usual, unusual = VALUES[word]
        return word, {"pid": pid, word: draw.choice(usual if draw.random() < 0.8 else unusual)}
    if word == "location":
        return word, {"pid": pid, word: draw.choice(ROOMS)}
    if word == "closecontact":
        return word, {"pid": pid}
    if word == "result" and asked and asked.get(pid) and draw.random() < 0.85:
        request = draw.choice(asked[pid])
        tested = EPOCH + timedelta(milliseconds=at, hours=-draw.randrange(12))
    else:
        request = draw.choice(known) if known and draw.random() < 0.5 else draw.randrange(20)
        tested = datetime(2027, 1, 1, tzinfo=UTC) + timedelta(hours=draw.randrange(2000))
    said = tested.date().isoformat() if draw.random() < 0.2 else tested.isoformat()
    payload = {"pid": pid, "testDate": said, "reqId": request}
    return word, payload | ({"result": draw.random() < 0.5} if word == "result" else {})


def draw_gathering(
    draw: random.Random, people: Sequence[str], start: int
) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Draw how people sit together, second by second: messages, and when they come.

    It lasts about as long as a close contact does, often to the second, at once or in two
    rooms. Some samples are missing, some people move or come late; some stay over midnight.
    """
    if draw.random() < 0.3:
        start += (-start - draw.choice([901, 600, 450]) * 1000) % DAY
    missing, restless = draw.choice([(0, 0), (0, 0), (0.02, 0), (0, 0.002)])
    late = draw.choice([0, 0, 1, 300])
    for seconds in draw.choice([(900,), (901,), (1100,), (450, 450), (450, 451), (20, 1000)]):
        rooms = dict.fromkeys(people, draw.choice(ROOMS))
        for second in range(seconds):
            for pid in people[1:] if second < late else people:
                if draw.random() < restless:
                    rooms[pid] = draw.choice(ROOMS)
                if draw.random() >= missing:
                    payload = {"pid": pid, "location": rooms[pid]}
                    yield "location", payload, start + second * 1000
        start += (seconds + 600) * 1000
        late = 0


def draw_outbreak(draw: random.Random, start: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Draw a gathering after which one falls ill, and another is tested: messages, and when."""
    people = draw.sample(PATIENTS, draw.choice([2, 2, 3]))
    at = start
    for message in draw_gathering(draw, people, start):
        at = message[2]
        yield message
    asked = at + HOUR
    yield "saturation", {"pid": people[0], "saturation": draw.choice([93, 96])}, asked
    if draw.random() < 0.5:
        yield "temperature", {"pid": people[1], "temperature": 38.6}, asked + HOUR
    tested = (EPOCH + timedelta(milliseconds=asked)).isoformat()
    result = {"pid": people[1], "testDate": tested, "reqId": asked, "result": draw.random() < 0.8}
    yield "result", result, asked + 2 * HOUR
