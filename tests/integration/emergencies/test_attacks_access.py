"""Attacks on access in emergencies: groups, queues, wishes, purposes, what is about nobody."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import ReasonCode
from penstock.mqtt.codes import FAILURE
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.house import (
    HOUSE,
    Login,
    about,
    numbers,
    numbers_until,
    open_doors,
    open_house,
    open_situations,
)
from tests.support.gateway.ward import define, login

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    with open_house(tmp_path_factory.mktemp("house"), broker.port) as running:
        yield running


@pytest.fixture
def enter(gateway: GatewayThread) -> Iterator[Login]:
    with open_doors(gateway) as connect:
        yield connect


@contextmanager
def gateway_sensor(gateway: GatewayThread) -> Iterator[Callable[[str, bytes], int]]:
    with login(gateway.port, "sensor") as client:
        yield lambda topic, payload: int(client.publish(topic, payload, qos=1).reason)


def test_a_preference_gives_nobody_a_right(enter: Login) -> None:
    """`stranger` is in the patient's preference and has no policy; the doctor has no wish."""
    patient, nurse = enter("patient"), enter("nurse")
    stranger, doctor = enter("stranger"), enter("doctor")
    for reader in (nurse, stranger, doctor):
        reader.subscribe("house/#", qos=1)
    sensor = enter("sensor")
    sensor.publish("house/pulse", about("patient", 120, 1), qos=1)
    patient.publish("house/note", about("patient", 0, 2), qos=1)
    assert numbers(nurse, 2) == [1, 2]
    assert numbers(doctor, 1) == [1]  # the sensor's own; not what the patient publishes
    assert numbers(stranger) == []
    sensor.publish("house/pulse", about("patient", 10), qos=1)


@pytest.mark.parametrize("thief", ["stranger", "doctor"])
def test_nobody_takes_a_groups_messages_by_joining_it(enter: Login, thief: str) -> None:
    """A shared subscription gives each message to one member: not to one who may not read."""
    nurses = [enter("nurse") for _ in range(2)]
    thieves = [enter(thief) for _ in range(3)]
    for client in (*nurses, *thieves):
        client.subscribe("$share/ward/house/shared", qos=1)
    with_sensor = enter("sensor")
    for number in range(20):
        with_sensor.publish("house/shared", about("nobody", 0, number), qos=1)
    seen: list[int] = []
    deadline = time.monotonic() + 10
    while len(seen) < 20 and time.monotonic() < deadline:
        seen += [it for nurse in nurses for it in numbers(nurse)]
    assert sorted(seen) == list(range(20))
    assert [numbers(it) for it in thieves] == [[], [], []]


def test_what_was_queued_or_retained_is_closed_after_the_end(enter: Login) -> None:
    sensor = enter("sensor")
    away = enter("doctor", client_id="doctor:queue", expiry=600)
    away.subscribe("house/#", qos=2)
    sensor.publish("house/pulse", about("queue", 120, 1), qos=1)
    assert numbers(away, 1) == [1]
    away.vanish()
    for number in range(2, 10):
        sensor.publish("house/note", about("queue", 0, number), qos=2, retain=number == 9)
    sensor.publish("house/pulse", about("queue", 10, 10), qos=1)
    back = enter("doctor", client_id="doctor:queue", clean=False, expiry=0)
    assert numbers(back) == []
    back.subscribe("house/note", qos=2)  # the retained one is offered again
    assert numbers(back) == []
    nurse = enter("nurse")
    nurse.subscribe("house/note", qos=2)
    assert numbers(nurse, 1) == [9]
    sensor.publish("house/note", b"", qos=1, retain=True)


@pytest.mark.parametrize("patient", ["patient", "ann"])
def test_the_patients_wishes_hold_for_what_actions_publish(enter: Login, patient: str) -> None:
    """A call is about a patient, and published for them: `patient` wants nurses to hear it."""
    sensor, nurse, stranger = enter("sensor"), enter("nurse"), enter("stranger")
    for reader in (nurse, stranger):
        reader.subscribe("calls/#", qos=1)
    sensor.publish("house/pulse", about(patient, 120), qos=1)
    assert [it.topic for it in nurse.messages(1)] == [f"calls/{patient}"]
    heard = [it.topic for it in stranger.messages(0 if patient == "patient" else 1)]
    assert heard == ([] if patient == "patient" else ["calls/ann"])
    sensor.publish("house/pulse", about(patient, 10), qos=1)


def test_purposes_hold_in_an_emergency(enter: Login) -> None:
    sensor, plain, doctor = enter("sensor"), enter("doctor"), enter("doctor")
    wrong = enter("doctor")
    plain.subscribe("house/reserved", qos=1)
    doctor.subscribe("!AP/house/reserved{care}", qos=1)
    wrong.subscribe("!AP/house/reserved{research}", qos=1)
    sensor.publish("house/pulse", about("purpose", 120), qos=1)
    sensor.publish("house/reserved", about("purpose", 0, 1), qos=1)
    assert numbers(doctor, 1) == [1]
    assert numbers(plain) == numbers(wrong) == []
    sensor.publish("house/pulse", about("purpose", 10), qos=1)


def test_a_message_that_contradicts_its_topic_is_about_nobody(enter: Login) -> None:
    sensor, doctor, nurse = enter("sensor"), enter("doctor"), enter("nurse")
    for reader in (doctor, nurse):
        reader.subscribe("house/room/+", qos=1)
    sensor.publish("house/pulse", about("here", 120), qos=1)
    sensor.publish("house/room/here", about("here", 0, 1), qos=1)
    sensor.publish("house/room/there", about("here", 0, 2), qos=1)
    sensor.publish("house/room/here", about("there", 0, 3), qos=1)
    assert numbers(nurse, 3) == [1, 2, 3]
    assert numbers(doctor, 1) == [1]
    sensor.publish("house/pulse", about("here", 10), qos=1)


def test_access_follows_the_situations_of_a_random_day(enter: Login) -> None:
    """Statements 5 and 6 on the wire, against a model of one line."""
    draw = random.Random(11)
    sensor, doctor, nurse = enter("sensor"), enter("doctor"), enter("nurse")
    for reader in (doctor, nurse):
        reader.subscribe("house/note", qos=1)
    alert: set[str] = set()
    expected = []
    for number in range(150):
        patient, value = f"day-{draw.randrange(4)}", draw.choice((10, 60, 60, 120))
        sensor.publish("house/pulse", about(patient, value), qos=1)
        alert = alert | {patient} if value > 100 else alert - {patient} if value < 50 else alert
        asked = f"day-{draw.randrange(4)}"
        sensor.publish("house/note", about(asked, 0, number), qos=1)
        assert numbers_until(nurse, number)  # it was delivered before anything moves again
        doctor.settle()
        if asked in alert:
            expected.append(number)
    assert numbers(doctor, len(expected)) == expected
    for patient in alert:
        sensor.publish("house/pulse", about(patient, 10), qos=1)


def test_an_exclusive_plan_sets_ordinary_rights_aside(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    text = HOUSE.replace(
        "policies: required\n",
        "policies: required\nexclusive: [{plan: alert, about: o.patientId}]\n",
    )
    with (
        open_house(tmp_path, broker.port, text) as gateway,
        login(gateway.port, "nurse") as nurse,
        login(gateway.port, "doctor") as doctor,
    ):
        for reader in (nurse, doctor):
            reader.subscribe("house/other", qos=1)
        with gateway_sensor(gateway) as publish:
            publish("house/other", about("ann", 0, 1))
            publish("house/other", about("bob", 0, 2))
            assert numbers(nurse, 2) == [1, 2]
        detection = gateway.gateway.emergencies.detection
        with open_situations(gateway) as situations:
            asked = situations.request("alert", "ann", "Alert", actor="ann", reason="fell")
            deadline = time.monotonic() + 60
            while gateway.do(lambda: detection.board.current("alert", "ann")) is None:
                assert time.monotonic() < deadline, situations.find(asked.request)
                time.sleep(0.05)
        with gateway_sensor(gateway) as publish:
            # The sensor's right is an ordinary one: about Ann it may write nothing any more.
            assert publish("house/other", about("ann", 0, 3)) == ReasonCode.NOT_AUTHORIZED
            publish("house/other", about("bob", 0, 4))
            assert numbers(nurse, 1) == [4]
            assert doctor.publish("house/other", about("ann", 0, 5), qos=1).reason < FAILURE
            assert numbers(doctor, 1) == [5]
            assert numbers(nurse) == []
            # Nobody knows: then it might be an emergency of anybody.
            gateway.do(lambda: detection.board.invalidate("on purpose"))
            assert publish("house/other", about("bob", 0, 6)) == ReasonCode.NOT_AUTHORIZED
        assert numbers(nurse) == numbers(doctor) == []


def test_who_is_no_longer_followed_or_in_the_group_loses_access_at_once(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """A scenario for a list of patients, opened to a group: both lists change meanwhile."""
    group = "kind: group\nname: doctors\nmembers: [MEMBERS]\n---\n"
    text = (group + HOUSE).replace("subject: user:doctor", "subject: group:doctors")
    text = text.replace(
        "plan: alert\nattribute: pid", "plan: alert\nattribute: pid\nsubjects: [WHO]"
    )

    def fill(members: str, who: str) -> str:
        return text.replace("MEMBERS", members).replace("WHO", who)

    with (
        open_house(tmp_path, broker.port, fill("user:doctor, user:echo", "ann, bob")) as gateway,
        open_doors(gateway) as enter,
    ):
        doctor, echo, sensor = enter("doctor"), enter("echo"), enter("sensor")
        for reader in (doctor, echo):
            reader.subscribe("house/list", qos=1)
        for patient in ("ann", "bob", "cid"):
            sensor.publish("house/pulse", about(patient, 120), qos=1)

        def ask() -> tuple[list[int], list[int]]:
            for number, patient in enumerate(("ann", "bob", "cid"), 1):
                sensor.publish("house/list", about(patient, 0, number), qos=1)
            for reader in (doctor, echo):
                reader.settle()
            return numbers(doctor), numbers(echo)

        assert ask() == ([1, 2], [1, 2])
        follow(gateway, fill("user:doctor", "ann, bob"))
        assert ask() == ([1, 2], [])
        follow(gateway, fill("user:doctor", "bob, cid"))
        assert ask() == ([2], [])
        # Being on the list again brings back no emergency of old.
        follow(gateway, fill("user:doctor, user:echo", "ann, bob, cid"))
        assert ask() == ([2], [2])


def follow(gateway: GatewayThread, text: str) -> None:
    """Change the definitions, and wait until the gateway knows them: what they end is over then."""
    epoch = gateway.do(lambda: gateway.gateway.rules.epoch)
    define(gateway.config, text)
    deadline = time.monotonic() + 60
    while gateway.do(lambda: gateway.gateway.rules.epoch == epoch):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_an_emergency_granted_is_on_record(broker: MosquittoServer, tmp_path: Path) -> None:
    """By whom, about whom, in which situation; not what nurses may read anyway."""
    with open_house(tmp_path, broker.port) as gateway, open_doors(gateway) as enter:
        doctor, nurse, sensor = enter("doctor"), enter("nurse"), enter("sensor")
        for reader in (doctor, nurse):
            reader.subscribe("house/record", qos=1)
        sensor.publish("house/pulse", about("ann", 120), qos=1)
        for number in range(3):
            sensor.publish("house/record", about("ann", 0, number), qos=1)
        assert numbers(doctor, 3) == numbers(nurse, 3) == [0, 1, 2]
        people = Pseudonyms.open(gateway.config.audit.pseudonym_key)
        deadline = time.monotonic() + 60
        granted: list[Any] = []
        while sum(json.loads(it.details)["count"] for it in granted) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            with (
                Database.open(gateway.config.store.connection_url()) as database,
                database.read() as connection,
            ):
                entries = [it.entry for it in read_last(connection, 1000)]
            granted = [it for it in entries if it.kind == "emergency.granted"]
        for entry in granted:
            assert entry.actor == people.person("doctor")
            assert entry.subject == people.person("ann")
            assert entry.rule == people.rule("emergency-policy doctor")
            details = json.loads(entry.details)
            assert (details["scenario"], details["situation"]) == ("alert", "Alert")
        changed = [it for it in entries if it.kind == "situation.changed"]
        assert [it.subject for it in changed] == [people.person("ann")]
