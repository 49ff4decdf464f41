"""Statement 6 of the case study's appendix on the wire, with filters that are drawn.

Who reads and writes what is decided by exactly the policies for the situations that involve the
one who asks. Each round draws a subject filter (or a list that stands for one), a scenario and a
situation filter, whether emergency policies replace ordinary ones, and who is in which situation.
Messages go through a real gateway; the model below decides each of them by hand.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login
from tests.support.nursing_home.program import FOLDER
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

PATIENTS: Final = ("patient-1", "patient-2", "patient-3")
LEVELS: Final = {
    "Possible": 1, "Suspected": 2, "Asymptomatic": 3, "Symptomatic": 4, "Severe": 5,
}  # fmt: skip
TREATS: Final = {
    "physician-1": {"patient-1", "patient-2"},
    "physician-2": {"patient-3"},
}
RELATIVES: Final = {"relative-1": {"patient-1"}, "relative-2": {"patient-2"}}
READERS: Final = (*TREATS, *RELATIVES, "specialist-1", "patient-2")
SENSORS: Final = ("sensor-1", "sensor-2", "sensor-3")
ROUNDS: Final = scaled(12)

Involves = Callable[[str, str], bool]
"""Whether somebody is involved in the case of a patient."""


class Filter(NamedTuple):
    """Lines of a scenario, whom it is followed for, and who is involved in their cases."""

    lines: str
    followed: frozenset[str]
    involves: Involves


def treats(who: str, patient: str) -> bool:
    return patient in TREATS.get(who, ())


def is_related(who: str, patient: str) -> bool:
    return patient in RELATIVES.get(who, ())


def everybody(who: str, patient: str) -> bool:
    return bool(who and patient)


EVERYONE: Final = frozenset(PATIENTS)
FILTERS: Final = (
    Filter("description: everybody", EVERYONE, everybody),
    Filter("subjects: [patient-1, patient-2]", frozenset(PATIENTS[:2]), everybody),
    Filter("group: patient", EVERYONE, everybody),
    Filter(
        "subject_filter: s.uid == c.subject || c.subject in s.pSet",
        EVERYONE,
        lambda who, patient: who == patient or treats(who, patient),
    ),
    Filter(
        'subject_filter: s.uid == c.subject || "external_specialist" in s.groups',
        EVERYONE,
        lambda who, patient: who in {patient, "specialist-1"},
    ),
    Filter(
        # Who has no such list is not involved, as they miss what the filter asks for.
        "subjects: [patient-1, patient-2, patient-3]\n"
        'subject_filter: s.relativeOf.union(["patient-3"]).subset([c.subject, "patient-3"])',
        EVERYONE,
        is_related,
    ),
    Filter(
        # Example 9: one scenario, of one patient, and of the staff.
        'subject_filter: (s.uid == "patient-2" && c.subject == s.uid) || '
        '("medical_personnel" in s.groups && c.subject == "patient-2")',
        frozenset({"patient-2"}),
        lambda who, patient: patient == "patient-2" and (who in TREATS or who == patient),
    ),
)
SCENARIOS: Final[dict[str, Callable[[str, str], bool]]] = {
    "description: all scenarios": everybody,
    'scenario_filter: c.scenario == "covid" && c.plan == "covid-19"': everybody,
    'scenario_filter: c.subject != "patient-1"': lambda _, patient: patient != "patient-1",
    'scenario_filter: c.subject in s.relativeOf || s.uid == "specialist-1"': (
        lambda who, patient: is_related(who, patient) or who == "specialist-1"
    ),
}
SITUATIONS: Final[dict[str, Callable[[str, str], bool]]] = {
    "exclusive: false": lambda _who, _situation: True,
    "situations: [Symptomatic, Severe]": lambda _, it: it in {"Symptomatic", "Severe"},
    "minimum_level: 3": lambda _, it: LEVELS[it] >= 3,
    "situation_filter: c.level >= 3": lambda _, it: LEVELS[it] >= 3,
    'situation_filter: c.situation == "Severe" || "relative" in s.groups': (
        lambda who, it: it == "Severe" or who in RELATIVES
    ),
}
EXCLUSIVE: Final = {
    "adds": "exclusive: []",
    "replaces": "exclusive: [{plan: covid-19, about: o.patientId}]",
    "replaces all": "exclusive: [{plan: covid-19, any_object: true}]",
}
RULES: Final = """
kind: scenario
name: covid
plan: covid-19
attribute: pid
{scenario}
---
kind: enforcement
name: default
policies: required
{exclusive}
---
kind: emergency-policy
name: external_specialist/read-physiological
subject: group:external_specialist
filter: physiological/#
allow: read
plan: covid-19
about: o.patientId
{scenarios}
{situations}
---
kind: emergency-policy
name: relative/read-bulletin
subject: group:relative
filter: bulletin
allow: read
when: o.patientId in s.relativeOf
plan: covid-19
about: o.patientId
{scenarios}
{situations}
"""


class Round:
    """What was drawn for a round, and what the model says of it."""

    def __init__(self, draw: random.Random) -> None:
        self.filter = draw.choice(FILTERS)
        self.scenarios = draw.choice(list(SCENARIOS))
        self.situations = draw.choice(list(SITUATIONS))
        self.exclusive = draw.choice(list(EXCLUSIVE))
        self.cases: dict[str, str | None] = {
            patient: draw.choice([None, *LEVELS])
            for patient in PATIENTS
            if patient in self.filter.followed
        }

    @property
    def text(self) -> str:
        return RULES.format(
            scenario=self.filter.lines,
            scenarios=self.scenarios,
            situations=self.situations,
            exclusive=EXCLUSIVE[self.exclusive],
        )

    def is_ordinary(self, who: str, patient: str) -> bool:
        """Say whether ordinary policies count for somebody on messages about a patient."""
        if self.exclusive == "adds":
            return True
        cases = {patient} if self.exclusive == "replaces" else set(PATIENTS)
        return not any(self.cases.get(it) and self.filter.involves(who, it) for it in cases)

    def grants(self, who: str, patient: str) -> bool:
        """Say whether an emergency policy with these filters applies to somebody."""
        situation = self.cases.get(patient)
        return (
            situation is not None
            and self.filter.involves(who, patient)
            and SCENARIOS[self.scenarios](who, patient)
            and SITUATIONS[self.situations](who, situation)
        )

    def reads(self, who: str, topic: str, patient: str) -> bool:
        if topic == "bulletin":
            ordinary = who == patient
            emergency = is_related(who, patient)
        else:
            ordinary = treats(who, patient)
            emergency = who == "specialist-1"
        by_emergency = emergency and self.grants(who, patient)
        return (ordinary and self.is_ordinary(who, patient)) or by_emergency


@pytest.fixture
def home(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    passwords = write_passwords(tmp_path / "passwords", dict.fromkeys((*READERS, *SENSORS), "x"))
    chosen: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "emergencies": {"lease": "300s"},  # a busy machine is no reason to stop detecting
    }
    texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
    define(write_config(tmp_path, broker.port, chosen), "\n---\n".join(texts))
    with run_gateway(tmp_path, broker.port, chosen) as running:
        yield running


def take_over(home: GatewayThread, drawn: Round) -> None:
    """Let the gateway have the rules of a round, and put everybody into their situations."""
    detection = home.gateway.emergencies.detection
    define(home.config, drawn.text)
    with Database.open(home.config.store.connection_url()) as database:
        # Two rounds may draw the same: then nothing changes.
        epoch = Definitions(database).snapshot().epoch

    def has_rules() -> bool:
        return home.gateway.rules.epoch == epoch and not detection.reload.busy

    def put() -> None:
        assert detection.engine is not None
        for patient, situation in drawn.cases.items():
            now = detection.clock.now()
            outcome = detection.engine.set_situation("covid", patient, situation, now)
            for it in outcome.transitions:
                detection.board.move(it.scenario, it.subject, it.target)

    wait_until(lambda: home.do(has_rules))
    home.do(put)


def test_policies_are_selected_as_the_model_says(home: GatewayThread) -> None:
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    granted = set()
    with ExitStack() as stack:
        clients: dict[str, RawClient] = {
            name: stack.enter_context(login(home.port, name)) for name in (*READERS, *SENSORS)
        }
        for name in READERS:
            clients[name].subscribe("physiological/#", qos=1)
            clients[name].subscribe("bulletin", qos=1)
        number = 0
        for _ in range(ROUNDS):
            drawn = Round(draw)
            take_over(home, drawn)
            expected: dict[str, list[int]] = {name: [] for name in READERS}
            for writer, topic, patient in (
                *((name, "physiological/temperature", f"patient-{name[-1]}") for name in SENSORS),
                *((name, "bulletin", it) for name in TREATS for it in sorted(TREATS[name])),
            ):
                number += 1
                body = {"pid": patient, "temperature": 36.5, "reqId": number}
                answer = clients[writer].publish(topic, json.dumps(body).encode(), qos=1)
                may_write = drawn.is_ordinary(writer, patient)
                told = (seed, drawn.text, drawn.cases, writer, topic, patient)
                assert (answer.reason < FAILURE) is may_write, told
                for name in READERS:
                    if may_write and drawn.reads(name, topic, patient):
                        expected[name].append(number)
                        granted.add((name, drawn.exclusive))
            for name in READERS:
                messages = clients[name].messages(len(expected[name]))
                found = [json.loads(it.payload)["reqId"] for it in messages]
                assert found == expected[name], (seed, drawn.text, drawn.cases, name)
        for name in READERS:
            assert clients[name].messages() == [], (seed, name)
    assert granted  # what is granted to nobody shows nothing
