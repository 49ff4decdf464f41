"""Attacks on emergencies, and what a nurse may run into: odd names, groups, queues, wishes.

The ward here knows its patients from payloads: whoever may publish chooses any text as the
patient, and a message and its topic need not agree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, Publish, ReasonCode
from penstock.mqtt.reasons import FAILURE
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.situations import Situations
from tests.gateway.harness import GatewayThread, run_gateway, write_config
from tests.gateway.raw import RawClient
from tests.gateway.ward import define, login, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.gateway.fixtures",)

Login = Callable[..., RawClient]

HOUSE = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: house
subject: {uid: string}
object: {patientId: string}
payload: {value: double, pid: string, number: int}
---
kind: object
name: house
topics: "house/#"
payload: {patientId: pid}
---
kind: object
name: rooms
topics: "house/room/+patientId"
---
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: reservation
name: house/reserved
allow: [care]
---
kind: event
name: Reading
attributes: {pid: string, value: double}
packet:
  filters: ["house/pulse"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: Peak
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value > 100.0}
---
kind: event
name: Rest
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value < 50.0}
---
kind: action
name: Call
event: Peak
topic: "calls/{pid}"
payload: {pid: it.pid}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert, actions: [Call]}
  - {event: Rest, from: Alert}
---
kind: scenario
name: alert
plan: alert
attribute: pid
---
kind: policy
name: sensor
subject: user:sensor
filter: house/#
allow: write
---
kind: policy
name: nurse
subject: user:nurse
filter: "#"
allow: read
---
kind: emergency-policy
name: doctor
subject: user:doctor
filter: "#"
allow: read
plan: alert
about: o.patientId
---
kind: emergency-policy
name: doctor/write
subject: user:doctor
filter: house/#
allow: write
plan: alert
about: o.patientId
---
kind: preference
name: patient/private
user: patient
filter: house/#
when: '"nurse" == s.uid || "stranger" == s.uid'
---
kind: preference
name: patient/calls
user: patient
filter: calls/#
when: '"nurse" == s.uid'
---
kind: emergency-policy
name: stranger/calls
subject: user:stranger
filter: calls/#
allow: read
plan: alert
about: t.payload.pid
---
kind: policy
name: patient
subject: user:patient
filter: house/#
allow: write
"""

ODD = [
    "",
    " ",
    "a/b",
    "+",
    "#",
    "$SYS",
    "$share/x/y",
    "a\0b",
    "\ud800",
    "\ufffe\uffff",
    "\u202egnirts",
    "Ærøskøbing 病 🏥",
    "e\u0301",
    "x" * 300,
    "y" * 70_000,
    "line\nbreak",
    "{pid}",
    "%s%n",
    "'; drop table situations; --",
    "…0123456789abcdef",
]


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    with open_house(tmp_path_factory.mktemp("house"), broker.port) as running:
        yield running


@contextmanager
def open_house(folder: Path, broker_port: int, text: str = HOUSE) -> Iterator[GatewayThread]:
    chosen = settings(folder)
    define(write_config(folder, broker_port, chosen), text)
    with run_gateway(folder, broker_port, chosen) as running:
        yield running


@pytest.fixture
def enter(gateway: GatewayThread) -> Iterator[Login]:
    made: list[RawClient] = []

    def connect(user: str, **options: Any) -> RawClient:
        made.append(login(gateway.port, user, **options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@contextmanager
def open_situations(gateway: GatewayThread) -> Iterator[Situations]:
    config = gateway.config
    gateway.call(gateway.gateway.guard.detection.journal.finish)
    with Database.open(config.store.connection_url()) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        yield Situations(database, log, Pseudonyms.open(config.audit.pseudonym_key))
        log.close()


def about(patient: str, value: float = 0.0, number: int = 0) -> bytes:
    return json.dumps({"pid": patient, "value": value, "number": number}).encode()


def situation(gateway: GatewayThread, patient: str) -> str | None:
    return gateway.do(lambda: gateway.gateway.guard.detection.board.current("alert", patient))


def numbers(client: RawClient, count: int = 0) -> list[int]:
    found = [json.loads(it.payload) for it in client.messages(count)]
    return [it["number"] for it in found if "number" in it]


@pytest.mark.parametrize("patient", ODD, ids=lambda it: ascii(it)[:20])
def test_no_patients_name_harms_detection_or_opens_another(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    sensor, doctor = enter("sensor"), enter("doctor")
    doctor.subscribe("#", qos=1)
    started = sensor.publish("house/pulse", about(patient, 120, 1), qos=1)
    assert gateway.do(gateway.gateway.guard.detection.is_alive)
    sensor.publish("house/note", about("somebody else", 0, 2), qos=1)
    sensor.publish("house/note", about(patient, 0, 3), qos=1)
    if started.reason < FAILURE:
        assert situation(gateway, patient) == "Alert"
        assert numbers(doctor, 2) == [1, 3]
        assert sensor.publish("house/pulse", about(patient, 10, 4), qos=1).reason < FAILURE
        assert situation(gateway, patient) is None
        sensor.publish("house/note", about(patient, 0, 5), qos=1)
        assert numbers(doctor) == []
    else:
        assert numbers(doctor) == []
    # Everybody else's emergencies go on, before and after a restart of detection.
    sensor.publish("house/pulse", about("ann", 120), qos=1)
    gateway.do(lambda: gateway.gateway.guard.detection._crash(RuntimeError("on purpose")))
    deadline = time.monotonic() + 60
    while not gateway.do(gateway.gateway.guard.detection.is_alive):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert situation(gateway, "ann") == "Alert"
    sensor.publish("house/pulse", about("ann", 10), qos=1)
    assert situation(gateway, "ann") is None


def test_a_packet_cannot_open_the_door_that_it_needs(gateway: GatewayThread, enter: Login) -> None:
    doctor, sensor = enter("doctor"), enter("sensor")
    denied = doctor.publish("house/pulse", about("door", 120), qos=1)
    assert denied.reason == ReasonCode.NOT_AUTHORIZED
    assert situation(gateway, "door") is None
    sensor.publish("house/pulse", about("door", 120), qos=1)
    # The one that ends the emergency is still allowed by it; the next one is not.
    assert doctor.publish("house/pulse", about("door", 10), qos=1).reason < FAILURE
    assert situation(gateway, "door") is None
    again = doctor.publish("house/pulse", about("door", 120), qos=1)
    assert again.reason == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_burst_moves_the_scenario_in_its_order(
    gateway: GatewayThread, enter: Login, qos: int, version: int
) -> None:
    """All in one segment: what is over before a message could be delivered opens nothing."""
    patient = f"burst-{qos}-{version}"
    sensor, nurse = enter("sensor", version=version), enter("nurse")
    nurse.subscribe("house/#", qos=qos)
    values = (60, 120, 60, 10, 60, 120, 120, 10, 10, 60)
    burst = b"".join(
        Publish.of("house/pulse", about(patient, it, at), qos=qos, packet_id=at if qos else 0)
        .encode(version)
        for at, it in enumerate(values, 1)
    )  # fmt: skip
    sensor.send_bytes(burst)
    for at in range(1, len(values) + 1) if qos == 2 else ():
        sensor.expect_answer(at)
        sensor.release(at)
    assert numbers(nurse, len(values)) == list(range(1, len(values) + 1))
    assert situation(gateway, patient) is None
    with open_situations(gateway) as situations:
        steps = [(it.source, it.target) for it in reversed(situations.history(subject=patient))]
    assert steps == [(None, "Alert"), ("Alert", None)] * 2


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


@pytest.mark.parametrize(
    "payload",
    [
        b'{"pid": ["ann"], "value": 120}',
        b'{"pid": {"toString": "ann"}, "value": 120}',
        b'{"pid": null, "value": 120}',
        b'{"pid": 7, "value": 120}',
        b'{"PID": "payload", "value": 120}',
        b'{"pid": "payload", "pid": "payload", "value": 120}',
        b'[{"pid": "payload", "value": 120}]',
        b'\xef\xbb\xbf{"pid": "payload", "value": 120}',
        '{"pid": "payload", "value": 120}'.encode("utf-16"),
        b'{"pid": "payload", "value": 120}' + b" " * 300_000,
        b'{"pid": "payload", "value": 120, "deep": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
        b'{"pid": "payload", "value": 120}}',
        b'{"pid": "payload", "value": true}',
        b'{"pid": "payload", "value": "120"}',
    ],
    ids=range(14),
)
def test_what_is_about_nobody_opens_and_starts_nothing(
    gateway: GatewayThread, enter: Login, payload: bytes
) -> None:
    """No JSON, not the declared type, too large, too deep, twice: neither an event nor readable."""
    sensor, doctor, nurse = enter("sensor"), enter("doctor"), enter("nurse")
    for reader in (doctor, nurse):
        reader.subscribe("house/#", qos=1)
    before = gateway.do(lambda: gateway.gateway.guard.detection.board.changes)
    sensor.publish("house/pulse", payload, qos=1)
    sensor.publish("house/note", payload, qos=1)
    assert gateway.do(lambda: gateway.gateway.guard.detection.board.changes) == before
    assert len(nurse.messages(1)) >= 1
    assert doctor.messages() == []


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


def test_no_detour_lets_a_stranger_start_an_emergency(gateway: GatewayThread, enter: Login) -> None:
    """An alias, a message with purposes, a forged stamp: the same decision."""
    stranger = enter("stranger")
    alias = stranger.publish("house/pulse", about("way", 120), qos=1, topic_alias=1)
    again = stranger.publish("", about("way", 120), qos=1, topic_alias=1)
    for_care = stranger.publish("!AIP/house/pulse{care}", about("way", 120), qos=1)
    forged = (("penstock-publisher", "sensor"), ("penstock-client", "sensor"))
    stamped = stranger.publish("house/pulse", about("way", 120), qos=2, user=forged)
    answers = [it.reason for it in (alias, again, for_care, stamped)]
    assert answers == [ReasonCode.NOT_AUTHORIZED] * 4
    assert situation(gateway, "way") is None
    sensor = enter("sensor")
    assert sensor.publish("!AIP/house/pulse{care}", about("way", 120), qos=1).reason < FAILURE
    assert situation(gateway, "way") == "Alert"
    sensor.publish("house/pulse", about("way", 10), qos=1)
