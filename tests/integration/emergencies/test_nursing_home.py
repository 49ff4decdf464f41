"""The nursing home of the case study through a real gateway, and preferences on the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock_lab.demo
from penstock.components import MosquittoServer
from penstock.mqtt import ReasonCode
from penstock.mqtt.codes import FAILURE
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
USERS = ("physician-1", "specialist-1", "sensor-1", "sensor-2", "laboratory", "relative-2")
TEMPERATURE = "physiological/temperature"
# A patient who lets only medical personnel see physiological data, emergencies or not.
PREFERENCE = """
kind: preference
name: patient-1/private
user: patient-1
filter: physiological/#
when: '"medical_personnel" in s.groups'
"""


@pytest.fixture
def home(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    passwords = write_passwords(tmp_path / "passwords", dict.fromkeys(USERS, "x"))
    chosen: dict[str, Any] = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
    define(write_config(tmp_path, broker.port, chosen), "\n---\n".join([*texts, PREFERENCE]))
    with run_gateway(tmp_path, broker.port, chosen) as running:
        yield running


def measure(client: RawClient, patient: int, temperature: float) -> int:
    body = {"pid": f"patient-{patient}", "temperature": temperature}
    return int(client.publish(TEMPERATURE, json.dumps(body).encode(), qos=1).reason)


def answer(client: RawClient, request: int, *, positive: bool) -> int:
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {"pid": "patient-2", "result": positive, "testDate": date, "reqId": request}
    return int(client.publish("result", json.dumps(body).encode(), qos=1).reason)


def situation(home: GatewayThread, scenario: str, patient: str) -> str | None:
    board = home.gateway.emergencies.detection.board
    return home.do(lambda: board.current(scenario, patient))


def temperatures(client: RawClient, count: int = 0) -> list[float]:
    return [json.loads(it.payload)["temperature"] for it in client.messages(count)]


def test_a_case_from_the_first_symptom_to_the_negative_test(home: GatewayThread) -> None:
    with (
        login(home.port, "sensor-2") as sensor,
        login(home.port, "laboratory") as laboratory,
        login(home.port, "physician-1") as physician,
        login(home.port, "specialist-1") as specialist,
    ):
        physician.subscribe("warning", qos=1)
        specialist.subscribe("physiological/#", qos=1)
        assert measure(sensor, 1, 41.0) == ReasonCode.NOT_AUTHORIZED  # it is not patient 1's
        assert measure(sensor, 2, 38.5) < FAILURE
        (warning,) = physician.messages(1)
        request = json.loads(warning.payload)["time"]
        assert temperatures(specialist) == []  # suspected only
        assert answer(laboratory, request, positive=True) < FAILURE
        assert measure(sensor, 2, 38.4) < FAILURE
        assert temperatures(specialist, 1) == [38.4]
        time.sleep(1.1)  # the dates of tests are whole seconds
        assert answer(laboratory, request, positive=False) < FAILURE
        assert measure(sensor, 2, 37.0) < FAILURE
        assert temperatures(specialist) == []


def test_a_normal_reading_after_a_negative_test_does_not_reopen_a_case(
    home: GatewayThread,
) -> None:
    with (
        login(home.port, "sensor-2") as sensor,
        login(home.port, "laboratory") as laboratory,
        login(home.port, "physician-1") as physician,
    ):
        physician.subscribe("warning", qos=1)
        assert measure(sensor, 2, 38.5) < FAILURE
        (warning,) = physician.messages(1)
        time.sleep(1.1)  # the dates of tests are whole seconds
        assert answer(laboratory, json.loads(warning.payload)["time"], positive=False) < FAILURE
        assert measure(sensor, 2, 36.8) < FAILURE
        assert physician.messages() == []  # the fever of before is in the window, and cleared
        assert situation(home, "covid", "patient-2") is None
        assert measure(sensor, 2, 38.2) < FAILURE
        assert len(physician.messages(1)) == 1  # a symptom that is newer than the test
        assert situation(home, "covid", "patient-2") == "Suspected"


def test_a_result_that_says_a_date_only_counts(home: GatewayThread) -> None:
    with (
        login(home.port, "sensor-2") as sensor,
        login(home.port, "laboratory") as laboratory,
        login(home.port, "physician-1") as physician,
    ):
        physician.subscribe("warning", qos=1)
        assert measure(sensor, 2, 38.5) < FAILURE
        (warning,) = physician.messages(1)
        body = {"pid": "patient-2", "result": True, "reqId": json.loads(warning.payload)["time"]}
        body["testDate"] = datetime.now(UTC).strftime("%Y-%m-%d")
        assert laboratory.publish("result", json.dumps(body).encode(), qos=1).reason < FAILURE
        assert situation(home, "covid", "patient-2") == "Symptomatic"


def test_preferences_hold_in_an_emergency_unless_it_overrides_them(home: GatewayThread) -> None:
    def read() -> list[float]:
        with (
            login(home.port, "sensor-1") as sensor,
            login(home.port, "specialist-1") as specialist,
            login(home.port, "physician-1") as physician,
        ):
            for reader in (specialist, physician):
                reader.subscribe("physiological/#", qos=1)
            measure(sensor, 1, 37.5)
            assert temperatures(physician, 1) == [37.5]
            return temperatures(specialist)

    def put(situation: str) -> None:
        detection = home.gateway.emergencies.detection
        assert detection.engine is not None
        outcome = detection.engine.set_situation(
            "covid", "patient-1", situation, detection.clock.now()
        )
        for it in outcome.transitions:
            detection.board.move(it.scenario, it.subject, it.target)

    home.do(lambda: put("Severe"))
    assert read() == []
    epoch = home.gateway.rules.epoch
    define(
        home.config,
        "kind: enforcement\nname: default\npolicies: required\n"
        "preferences_in_emergencies: overridden\n",
    )
    wait_until(lambda: home.do(lambda: home.gateway.rules.epoch) != epoch)
    assert read() == [37.5]
    home.do(home.gateway.tick)

    def is_on_record() -> bool:
        with (
            Database.open(home.config.store.connection_url()) as database,
            database.read() as connection,
        ):
            kinds = [it.entry.kind for it in read_last(connection, 100)]
        return "preference.overridden" in kinds

    wait_until(is_on_record)


def test_a_message_that_nobody_stamped_is_nobodys_to_read(
    home: GatewayThread, broker: MosquittoServer
) -> None:
    with RawClient(broker.port) as behind, login(home.port, "physician-1") as physician:
        behind.connect("behind")
        physician.subscribe("physiological/#", qos=1)
        body = b'{"pid": "patient-2", "temperature": 1.0}'
        forged = (("penstock-publisher", "sensor-2"),)
        behind.publish(TEMPERATURE, body, qos=1)
        assert physician.texts() == []
        # The broker is the gateway's own: who writes there writes as the gateway does.
        behind.publish(TEMPERATURE, body, qos=1, user=forged)
        assert physician.texts(1) == [(TEMPERATURE, body)]
