"""Forecasts reach the staff of a patient, and change nothing."""

from __future__ import annotations

import pytest

from penstock.cep.event_binding import Packet
from penstock_lab.demo.nursing_home.definitions import read_forecasts, read_people, read_rules
from penstock_lab.simulation.in_process import InProcess

FORECAST = {"pid": "patient-1", "risk": 0.9, "hours": 12}
TOPIC = "forecast/worsening"


@pytest.fixture
def carrier() -> InProcess:
    return InProcess([*read_rules(), *read_people(), *read_forecasts()])


def test_only_the_staff_of_the_patient_may_read_a_forecast(carrier: InProcess) -> None:
    people = ("physician-1", "nurse-1", "physician-2", "specialist-1", "relative-1", "patient-1")
    allowed = [name for name in people if carrier.may_read(name, TOPIC, FORECAST, "forecaster")]
    assert allowed == ["physician-1", "nurse-1"]


def test_only_the_job_may_publish_one(carrier: InProcess) -> None:
    assert carrier.publish(1000, "forecaster", TOPIC, FORECAST).allowed
    for name in ("physician-1", "sensor-1", "stranger"):
        assert not carrier.publish(1000, name, TOPIC, FORECAST).allowed


def test_no_situation_follows_from_a_forecast(carrier: InProcess) -> None:
    reading = {"pid": "patient-1", "temperature": 36.5}
    assert carrier.publish(1000, "sensor-1", "physiological/temperature", reading).allowed
    vital = {"temperature": 41.0, "respiratory": 60, "saturation": 50, "result": True}
    assert carrier.publish(1000, "forecaster", TOPIC, FORECAST | vital).allowed
    assert list(carrier.engine.situations()) == []
    message = {"topic": TOPIC, "payload": FORECAST | vital}
    packet = Packet(TOPIC, message, {"uid": "forecaster"}, {"patientId": "patient-1"})
    assert carrier.engine.prepare(packet, 2000).bound == []
    assert not carrier.may_read("specialist-1", "physiological/temperature", reading, "sensor-1")


def test_the_job_may_publish_nothing_else(carrier: InProcess) -> None:
    reading = {"pid": "patient-1", "saturation": 80.0}
    assert not carrier.publish(1000, "forecaster", "physiological/saturation", reading).allowed
