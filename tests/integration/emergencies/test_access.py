"""Detection and decisions together, step by step as a gateway takes them.

Every publish is offered to detection, authorised, and only then takes effect; every
delivery is decided with the situations of its moment.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock_lab.demo
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import StepResult
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import AccessDefinitions
from penstock.definitions.events.program import compile_program
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import Message
from penstock.policy.decision import Decision

FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
START = int(datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp() * 1000)
MINUTE = 60_000


class House:
    """The nursing home with detection and decisions, and a clock that goes on by minutes."""

    def __init__(self) -> None:
        texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
        documents = [it for text in texts for it in read_text(text).documents]
        definitions = DefinitionSet.build(documents)
        self.access = AccessDefinitions(definitions).access
        self.engine = Engine(compile_program(definitions.definitions))
        self.board = SituationBoard()
        self.at = START
        self.warnings: list[dict[str, Any]] = []

    @property
    def e(self) -> dict[str, Any]:
        return {"time": datetime.fromtimestamp(self.at / 1000, UTC)}

    def publish(self, user: str, topic: str, **payload: Any) -> Decision:
        self.at += MINUTE
        message = Message(topic, json.dumps(payload).encode(), user=user)
        principal = self.access.principal(user, None)
        packet = Packet(topic, message.t, principal.attributes, self.access.about(message), self.e)
        prepared = self.engine.prepare(packet, self.at)
        decision = self.access.decide("write", principal, message, self.e, self.board)
        if decision:
            self._follow(prepared.commit())
        return decision

    def _follow(self, outcome: StepResult) -> None:
        for it in outcome.transitions:
            self.board.move(it.scenario, it.subject, it.target)
        for publication in outcome.publications:
            if publication.topic == "warning":
                self.warnings.append(dict(publication.payload))

    def reads(self, user: str, topic: str, patient: str) -> bool:
        message = Message(topic, json.dumps({"pid": patient}).encode(), user="sensor-2")
        principal = self.access.principal(user, None)
        return self.access.decide("read", principal, message, self.e, self.board).allowed

    def measure(self, patient: int, temperature: float) -> Decision:
        sensor, pid = f"sensor-{patient}", f"patient-{patient}"
        return self.publish(sensor, "physiological/temperature", pid=pid, temperature=temperature)

    def test(self, patient: str, *, positive: bool) -> Decision:
        date = datetime.fromtimestamp(self.at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        request = self.warnings[-1]["time"]
        return self.publish(
            "laboratory", "result", pid=patient, result=positive, testDate=date, reqId=request
        )


TEMPERATURE = "physiological/temperature"


def test_access_opens_and_closes_with_the_situation() -> None:
    house = House()
    assert house.measure(2, 36.6)
    assert house.reads("physician-1", TEMPERATURE, "patient-2")
    assert not house.reads("physician-1", "location", "patient-2")
    assert not house.reads("specialist-1", TEMPERATURE, "patient-2")
    assert house.measure(2, 38.5)
    assert house.board.current("covid", "patient-2") == "Suspected"
    assert house.reads("physician-1", "location", "patient-2")
    assert house.reads("relative-2", "bulletin", "patient-2")
    assert not house.reads("specialist-1", TEMPERATURE, "patient-2")
    assert house.test("patient-2", positive=True)
    assert house.board.current("covid", "patient-2") == "Symptomatic"
    assert house.reads("specialist-1", TEMPERATURE, "patient-2")
    assert not house.reads("specialist-1", TEMPERATURE, "patient-1")
    assert house.reads("physician-1", TEMPERATURE, "patient-2")
    assert house.test("patient-2", positive=False)
    assert house.board.current("covid", "patient-2") is None
    assert not house.reads("specialist-1", TEMPERATURE, "patient-2")
    assert not house.reads("physician-1", "location", "patient-2")
    assert house.reads("physician-1", TEMPERATURE, "patient-2")


@pytest.mark.parametrize("user", ["stranger", "patient-2", "sensor-1", "physician-1", "laboratory"])
def test_a_denied_publisher_triggers_no_emergency(user: str) -> None:
    house = House()
    before = house.engine.save()
    assert not house.publish(user, TEMPERATURE, pid="patient-2", temperature=41.0)
    assert house.engine.save() == before
    assert house.engine.current("covid", "patient-2") is None
    assert not house.reads("physician-1", "location", "patient-2")


def test_the_board_holds_what_the_engine_holds() -> None:
    house = House()
    for patient, temperature in ((1, 38.5), (2, 39.0), (3, 36.5), (1, 36.6)):
        assert house.measure(patient, temperature)
    held = {(scenario, who): it for scenario, who, it, _ in house.engine.situations()}
    assert held
    for scenario in ("covid", "pulmonary"):
        for who in ("patient-1", "patient-2", "patient-3"):
            assert house.board.current(scenario, who) == held.get((scenario, who))
