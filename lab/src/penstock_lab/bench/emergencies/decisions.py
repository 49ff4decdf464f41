"""How long a decision on access takes, at the size of the case study and five times that.

Method:
- The policies are the nursing home's. The population is drawn: a tenth of the patients have
  a preference, a tenth are in an emergency; staff treat 20 patients each. Half of the
  questions are about patients that the principal has to do with.
- A decision is what the gateway asks for: a message is made from topic and payload, its
  payload is parsed for the patient's name, and the principal's right to it is decided.
  `payload` is the making and parsing alone.
- `first` are decisions on a principal and a patient that were not asked about before, so that
  all conditions are evaluated; `again` are the same questions a second time; `changing` are
  those of a policy that looks at the time, which is never remembered; `after a change` are
  those after a change of the rules, when each principal and their rules are found anew once.
- The crowded home has the target's people and 10,000 further policies: half of them for
  other users on the same topics, half on other topics.
- Askers, patients and topics are drawn at random. The sizes take turns within a round; a
  figure is the best of its rounds in CPU time of the thread, a ratio compares figures of
  one run.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import AccessDefinitions
from penstock.lang import BOOL, build_scope, compile_expression
from penstock.model.document import Document
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import Action, Principal
from penstock.policy.access.requests import Message
from penstock.policy.access.rules import Policy
from penstock_lab.bench.emergencies.goals import at_most

SIZES = {"target": 1, "extreme": 5, "crowded": 1}
FURTHER = 10_000  # policies of others in the crowded home
PEOPLE = {"patient": 300, "medical_personnel": 60, "relative": 60, "external_specialist": 6}
SITUATIONS = ("Possible", "Suspected", "Asymptomatic", "Symptomatic", "Severe")
READ = ("physiological/temperature", "physiological/respiratory", "result", "bulletin", "location")
TREATED = 20  # patients of a member of the staff
CONCERNED = 0.5  # how many questions are about patients that the principal has to do with
GROWTH = 1.3

PARTS = ("events.yaml", "plans.yaml", "policies.yaml")
NIGHT = """
kind: policy
name: night
subject: group:medical_personnel
filter: night
allow: read
when: e.time.hour() < 6 && o.patientId in s.pSet
"""


class DecisionRequest(NamedTuple):
    """What is asked: who reads or writes what."""

    action: Action
    principal: Principal
    topic: str
    payload: bytes
    publisher: str


class Home:
    """A nursing home of some size, with questions about it."""

    def __init__(self, factor: int, questions: int, further: int = 0) -> None:
        self._draw = random.Random(factor)
        self._people = {
            group: [f"{group}-{number}" for number in range(count * factor)]
            for group, count in PEOPLE.items()
        }
        self._concerned = {patient: [patient] for patient in self._people["patient"]}
        self.access = self._make_access()
        patients = self._people["patient"]
        self.board = SituationBoard(
            ("covid", patient, self._draw.choice(SITUATIONS))
            for patient in self._draw.sample(patients, len(patients) // 10)
        )
        self._count = questions
        condition = compile_expression("true", build_scope(), BOOL)
        self.access.put(
            *(
                Policy(
                    f"policy further-{number}", f"user:other-{number}", filter_, "read", condition
                )
                for number in range(further)
                for filter_ in [f"other/{number}/#" if number % 2 else "physiological/#"]
            )
        )
        self.e = {"time": datetime(2026, 3, 1, 5, tzinfo=UTC)}

    def _make_access(self) -> AccessEngine:
        folder = files("penstock_lab.demo").joinpath("nursing_home")
        texts = [folder.joinpath(name).read_text("utf-8") for name in PARTS]
        documents = [it for text in (*texts, NIGHT) for it in read_text(text).documents]
        for group, names in self._people.items():
            members = [f"user:{name}" for name in names]
            documents.append(Document("group", group, {"members": members}))
        empty = ("guardian", "sensor", "proximity_sensor", "laboratory")
        documents += [Document("group", name, {}) for name in empty]
        return AccessDefinitions(DefinitionSet.build([*documents, *self._describe()])).access

    def _describe(self) -> Iterable[Document]:
        patients = self._people["patient"]
        for name in self._people["medical_personnel"]:
            treated = self._concerned[name] = self._draw.sample(patients, TREATED)
            yield Document("attributes", f"user:{name}", {"values": {"pSet": treated}})
        for name in self._people["relative"]:
            kin = self._concerned[name] = self._draw.sample(patients, 1)
            yield Document("attributes", f"user:{name}", {"values": {"relativeOf": kin}})
        for patient in patients[::10]:
            body = {
                "user": patient,
                "filter": "physiological/#",
                "when": '"medical_personnel" in s.groups',
            }
            yield Document("preference", patient, body)

    def draw_questions(
        self, topics: tuple[str, ...], action: Action = "read"
    ) -> list[DecisionRequest]:
        """Draw questions that differ in principal, topic or patient."""
        principals = [name for names in self._people.values() for name in names]
        if topics == ("night",) or action == "write":
            principals = self._people["medical_personnel"]
        drawn: dict[tuple[str, str, str], None] = {}
        while len(drawn) < self._count:
            principal = self._draw.choice(principals)
            patients = self._people["patient"]
            if self._draw.random() < CONCERNED:
                patients = self._concerned.get(principal, patients)
            drawn[principal, self._draw.choice(topics), self._draw.choice(patients)] = None
        return [
            DecisionRequest(
                action,
                self.access.principal(principal, None),
                topic,
                json.dumps({"pid": patient, "value": 36.6, "unit": "C"}).encode(),
                patient,
            )
            for principal, topic, patient in drawn
        ]

    def time_decisions(self, questions: list[DecisionRequest]) -> float:
        """Return microseconds for each question."""
        decide, board, e = self.access.decide, self.board, self.e
        started = time.thread_time_ns()
        for action, principal, topic, payload, publisher in questions:
            decide(action, principal, Message(topic, payload, user=publisher), e, board)
        return (time.thread_time_ns() - started) / len(questions) / 1e3

    def time_payloads(self, questions: list[DecisionRequest]) -> float:
        """Return microseconds for making a message and finding its patient."""
        about = self.access.about
        started = time.thread_time_ns()
        for _, _, topic, payload, publisher in questions:
            about(Message(topic, payload, user=publisher))
        return (time.thread_time_ns() - started) / len(questions) / 1e3

    def share_allowed(self) -> float:
        """Return how many of some questions are answered with yes: not all, and not none."""
        decisions = [
            self.access.decide(action, principal, Message(topic, payload), self.e, self.board)
            for action, principal, topic, payload, _ in self.draw_questions(READ)
        ]
        return round(sum(map(bool, decisions)) / len(decisions), 3)

    def measure(self) -> dict[str, float]:
        """Measure all figures once."""
        self.access.invalidate()
        figures: dict[str, float] = {}
        for label, topics, action in (
            ("read", READ, "read"),
            ("write", ("treatment", "bulletin"), "write"),
            ("changing", ("night",), "read"),
        ):
            questions = self.draw_questions(topics, "write" if action == "write" else "read")
            # Who asks is known then and so are their rules, but not what they say on a patient.
            strange = [it._replace(payload=b'{"pid": "nobody"}') for it in questions]
            if label == "read":
                figures["after a change"] = self.time_decisions(strange)
            else:
                self.time_decisions(strange)
            figures[f"{label}, first"] = self.time_decisions(questions)
            figures[f"{label}, again"] = self.time_decisions(questions)
            figures["payload"] = self.time_payloads(questions)
        return figures


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all homes."""
    rounds, questions = (3, 1_000) if quick else (9, 5_000)
    homes = {
        name: Home(factor, questions, FURTHER if name == "crowded" else 0)
        for name, factor in SIZES.items()
    }
    best: dict[str, dict[str, float]] = {name: {} for name in SIZES}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, home in homes.items():
                for label, figure in home.measure().items():
                    best[name][label] = min(best[name].get(label, figure), figure)
    finally:
        gc.enable()
    growth = {
        name: {
            label: round(figure / best["target"][label], 2)
            for label, figure in best[name].items()
            if label != "after a change"  # more principals are found anew: no decision grows
        }
        for name in ("extreme", "crowded")
    }
    return {
        "goals": {
            f"growth of {label}": at_most(GROWTH, growth["extreme"][label])
            for label in ("read, again", "write, again")
        },
        "us": {
            name: {label: round(figure, 2) for label, figure in figures.items()}
            for name, figures in best.items()
        },
        "growth": growth,
        "allowed": {name: home.share_allowed() for name, home in homes.items()},
    }
