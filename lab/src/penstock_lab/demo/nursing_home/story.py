"""The nursing home: an emergency opens data to those who can help, and closes it again.

Sensors publish vital signs, rooms report who is there, physicians and the laboratory do their
work. Nobody changes a policy in the whole story: what happens moves patients from situation
to situation, and what people receive follows.

Rules that hold here:
- Everything is real: a broker, the gateway as a process, and a client for each of the cast.
- Time passes quickly: the windows of two days last `WINDOW` seconds. Whatever must last is
  measured again before it is looked at, as sensors would.
- After each step everybody must have received exactly what the story says.
"""

from __future__ import annotations

from collections import Counter

from penstock.definitions import read_text
from penstock_lab.demo.nursing_home.cast import END, Cast
from penstock_lab.demo.nursing_home.definitions import DAY, read_people, read_rules, set_pace
from penstock_lab.demo.stage import set_up
from penstock_lab.demo.story import Story

WINDOW = 6.0
"""How many seconds the two days last that vital signs count for."""
SPEED = 2 * DAY / 1000 / WINDOW
ILL, MATE, OTHER = "patient-1", "patient-2", "patient-3"
WELL = {"temperature": 36.6, "respiratory": 16, "saturation": 98.0}
LISTENERS = ("physician-1", "specialist-1", "relative-1", ILL, MATE)
WHO = ("nurse-1", "laboratory", "officer", "stranger", "sensor-1", "sensor-2", "sensor-3", "room-1")
NOTICES = f"""
kind: policy
name: anyone/notices
description: Marks the end of a round of the demonstration.
subject: anyone
filter: {END}
allow: read
---
kind: policy
name: officer/notices
subject: user:officer
filter: {END}
allow: write
"""


def run(story: Story) -> None:
    """Run all steps, and check each of them."""
    story.step("Start a broker and the gateway, with the case study's definitions")
    # Rooms report once a second who is there, by the clock on the wall.
    rules = set_pace(read_rules(), speed=SPEED, rooms_every=round(1000 * SPEED))
    documents = [*rules, *read_people(), *read_text(NOTICES).documents]
    with set_up([*LISTENERS, *WHO], documents) as place, Cast(place, LISTENERS) as cast:
        kinds = Counter(it.kind for it in documents)
        policies = kinds["policy"] + kinds["emergency-policy"]
        story.note(
            f"{kinds['event']} event types, {kinds['plan']} plans and {policies} policies; "
            f"two days pass in {WINDOW:.0f} s"
        )
        _ordinary_day(story, cast)
        _oxygen_drops(story, cast)
        _positive_test(story, cast)
        _severe(story, cast)
        _recovery(story, cast)
        _by_hand(story, cast)


def _measure(cast: Cast, patient: str, **changed: float) -> None:
    sensor = patient.replace("patient", "sensor")
    for word, value in (WELL | changed).items():
        cast.publish(sensor, f"physiological/{word}", pid=patient, **{word: value})


def _signs(patient: str, *words: str) -> set[tuple[str, str]]:
    return {(f"physiological/{word}", patient) for word in words or WELL}


def _ordinary_day(story: Story, cast: Cast) -> None:
    story.step("An ordinary day: sensors measure; two patients sit together in the lounge")
    _measure(cast, ILL)
    _measure(cast, MATE)
    cast.sit_together("room-1", ILL, MATE)
    cast.expect(
        story,
        {"physician-1": _signs(ILL) | _signs(MATE)},
        "the physician receives the vital signs of his patients; nobody receives where they are",
    )
    story.expect(
        "the sensor of one patient cannot publish for another",
        actual=cast.try_to_publish("sensor-2", "physiological/saturation", pid=ILL, saturation=80),
        wanted=False,
    )
    story.expect("no emergency holds", actual=cast.situations(), wanted={})


def _oxygen_drops(story: Story, cast: Cast) -> None:
    story.step("The oxygen saturation of patient 1 drops to 91 %")
    _measure(cast, ILL, saturation=91)
    cast.wait_for({("covid", ILL): "Suspected", ("covid", MATE): "Possible"})
    story.expect(
        "two emergencies hold for patient 1, and the other is a possible case",
        actual=cast.situations(),
        wanted={
            ("pulmonary", ILL): "LowOxygenSaturation",
            ("covid", ILL): "Suspected",
            ("covid", MATE): "Possible",
        },
    )
    cast.expect(
        story,
        {
            "physician-1": _signs(ILL)
            | {("warning", ILL), ("warning", MATE), ("closecontact", MATE)},
            ILL: {("warning", ILL)},
            MATE: {("warning", MATE), ("closecontact", MATE)},
        },
        "both patients and the physician are warned; who sat with patient 1 is told so",
    )
    cast.sit_together("room-1", ILL)
    cast.expect(
        story,
        {"physician-1": {("location", ILL)}},
        "the physician finds the patient now; the specialist and the relative see nothing yet",
    )


def _positive_test(story: Story, cast: Cast) -> None:
    story.step("The test is positive")
    _measure(cast, ILL, saturation=91)
    cast.test(ILL, positive=True)
    cast.wait_for({("covid", ILL): "Symptomatic"})
    cast.take()
    _measure(cast, ILL, saturation=90)
    _measure(cast, MATE)
    cast.expect(
        story,
        {
            "physician-1": _signs(ILL) | _signs(MATE),
            "specialist-1": _signs(ILL, "temperature", "saturation"),
        },
        "the external specialist sees patient 1, and nobody else; the respiratory rate stays "
        "with the staff, as patient 1 prefers",
    )
    story.expect(
        "a stranger cannot make it worse: the gateway refuses, and nothing changes",
        actual=(
            cast.try_to_publish("stranger", "physiological/respiratory", pid=ILL, respiratory=60),
            cast.situations()["covid", ILL],
        ),
        wanted=(False, "Symptomatic"),
    )
    cast.test(MATE, positive=False)
    cast.wait_for({("covid", MATE): None})
    story.expect(
        "the close contact is tested negative: that case is closed",
        actual=("covid", MATE) in cast.situations(),
        wanted=False,
    )
    cast.take()


def _severe(story: Story, cast: Cast) -> None:
    story.step("Patient 1 breathes 33 times a minute: severe")
    _measure(cast, ILL, saturation=90, respiratory=33)
    cast.wait_for({("covid", ILL): "Severe"})
    cast.take()
    cast.publish("physician-1", "treatment", pid=ILL, option="oxygen")
    cast.expect(
        story,
        {"relative-1": {("treatment", ILL)}, ILL: {("treatment", ILL)}},
        "the guardian is told about the treatment",
    )
    story.expect(
        "the guardian may consent in the patient's place",
        actual=cast.try_to_publish("relative-1", "consent", pid=ILL, agrees=True),
        wanted=True,
    )
    cast.take()


def _recovery(story: Story, cast: Cast) -> None:
    story.step(f"Patient 1 recovers: two days ({WINDOW:.0f} s) without a symptom")
    cast.wait_for(
        {("covid", ILL): "Asymptomatic", ("pulmonary", ILL): None},
        meanwhile=lambda: _measure(cast, ILL),
    )
    cast.take()
    _measure(cast, ILL)
    cast.publish("physician-1", "treatment", pid=ILL, option="rest")
    cast.expect(
        story,
        {"physician-1": _signs(ILL), ILL: {("treatment", ILL)}},
        "time alone has closed it: the specialist and the guardian receive nothing more",
    )
    cast.publish("physician-1", "prescription", pid=ILL, testDate=cast.next_day(), reqId=1)
    cast.test(ILL, positive=False, request=1)
    cast.wait_for({("covid", ILL): None})
    cast.take()
    cast.sit_together("room-1", ILL)
    cast.expect(story, {}, "a negative test ends the case: nobody sees where the patient is")
    story.expect(
        "the history shows each step",
        actual=cast.history("covid", ILL),
        wanted=[
            "NewSymptom: ⊥ → Suspected",
            "PositiveWithSymptoms: Suspected → Symptomatic",
            "SevereSymptom: Symptomatic → Severe",
            "NoSevereSymptom: Severe → Symptomatic",
            "NoSymptom: Symptomatic → Asymptomatic",
            "Negative: Asymptomatic → ⊥",
        ],
    )


def _by_hand(story: Story, cast: Cast) -> None:
    story.step("Break the glass: patient 3 collapses, and no sensor noticed")
    cast.set_by_hand("covid", OTHER, "Severe", reason="collapsed in the garden")
    cast.wait_for({("covid", OTHER): "Severe"})
    # The temperature alone: a normal rate of breath would end what is severe.
    cast.publish("sensor-3", "physiological/temperature", pid=OTHER, temperature=36.4)
    shown = _signs(OTHER, "temperature")
    cast.expect(story, {"specialist-1": shown}, "the specialist sees patient 3 at once")
    cast.set_by_hand("covid", OTHER, None, reason="a false alarm")
    cast.wait_for({("covid", OTHER): None})
    cast.publish("sensor-3", "physiological/temperature", pid=OTHER, temperature=36.5)
    cast.expect(story, {}, "and no longer, when the officer ends it")
    story.expect(
        "both are in the history, with the officer's reason",
        actual=cast.reasons("covid", OTHER),
        wanted=["collapsed in the garden", "a false alarm"],
    )
