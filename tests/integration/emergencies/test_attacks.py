"""Attacks on detection: odd names and payloads, detours, floods; nothing else must move."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.components import MosquittoServer
from penstock.json_text import SIZE
from penstock.mqtt import V3, V5, Publish, ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from penstock.store.detection.tables import State
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.house import (
    HOUSE,
    Login,
    about,
    numbers,
    open_doors,
    open_house,
    open_situations,
    situation,
)
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import login

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

ODD = [
    "",
    " ",
    "a/b",
    "+",
    "#",
    "$SYS",
    "$share/x/y",
    "a\0b",
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


@pytest.fixture
def enter(gateway: GatewayThread) -> Iterator[Login]:
    with open_doors(gateway) as connect:
        yield connect


def fail(*given: object) -> NoReturn:
    raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("patient", ODD, ids=lambda it: ascii(it)[:20])
def test_no_patients_name_harms_detection_or_opens_another(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    sensor, doctor = enter("sensor"), enter("doctor")
    doctor.subscribe("#", qos=1)
    started = sensor.publish("house/pulse", about(patient, 120, 1), qos=1)
    assert gateway.do(gateway.gateway.emergencies.detection.is_alive)
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
    detection = gateway.gateway.emergencies.detection
    gateway.do(lambda: setattr(detection.engine, "apply", fail))
    assert sensor.publish("house/pulse", about("bob", 60), qos=1).reason >= FAILURE
    deadline = time.monotonic() + 60
    while not gateway.do(gateway.gateway.emergencies.detection.is_alive):
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
        b'{"pid": "payload", "value": 120}' + b" " * SIZE,
        b'{"pid": "payload", "value": 120, "deep": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
        b'{"pid": "payload", "value": 120}}',
        b'{"pid": "payload", "value": true}',
        b'{"pid": "payload", "value": "120"}',
        b'{"pid": "\\ud800", "value": 120}',
    ],
    ids=range(15),
)
def test_what_is_about_nobody_opens_and_starts_nothing(
    gateway: GatewayThread, enter: Login, payload: bytes
) -> None:
    """No JSON, not the declared type, too large, too deep, twice: neither an event nor readable."""
    sensor, doctor, nurse = enter("sensor"), enter("doctor"), enter("nurse")
    for reader in (doctor, nurse):
        reader.subscribe("house/#", qos=1)
    before = gateway.do(lambda: gateway.gateway.emergencies.detection.board.changes)
    sensor.publish("house/pulse", payload, qos=1)
    sensor.publish("house/note", payload, qos=1)
    assert gateway.do(lambda: gateway.gateway.emergencies.detection.board.changes) == before
    assert len(nurse.messages(1)) >= 1
    assert doctor.messages() == []


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


def test_every_way_of_publishing_is_detected(gateway: GatewayThread, enter: Login) -> None:
    """Statement 1 of the model: whatever reaches the broker was looked at before."""
    ways: dict[str, Callable[[str], object]] = {}

    def plain(client: RawClient, qos: int, retain: bool, patient: str) -> None:  # noqa: FBT001
        client.publish("house/pulse", about(patient, 120), qos=qos, retain=retain)

    for version in (V3, V5):
        sensor = enter("sensor", version=version)
        for qos, retain in product((0, 1, 2), (False, True)):
            ways[f"{version}-{qos}-{retain}"] = partial(plain, sensor, qos, retain)
    aliased = enter("sensor")
    aliased.publish("house/pulse", about("nobody", 60), qos=1, topic_alias=3)

    def vanish(patient: str) -> None:
        enter("sensor", will=Will("house/pulse", about(patient, 120))).vanish()

    ways |= {
        "alias": lambda it: aliased.publish("", about(it, 120), qos=1, topic_alias=3),
        "purposes": lambda it: aliased.publish("!AIP/house/pulse{care}", about(it, 120), qos=1),
        "will": vanish,
    }
    for name, publish in ways.items():
        publish(f"way {name}")
    expected = {f"way {name}" for name in ways}
    deadline = time.monotonic() + 60
    while {it for it in expected if situation(gateway, it) == "Alert"} != expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    aliased.publish("house/pulse", b"", qos=1, retain=True)
    for patient in expected:
        aliased.publish("house/pulse", about(patient, 10), qos=1)


KNOCKS = """---
kind: vocabulary
name: knocks
payload: {at: int}
---
kind: event
name: Knock
attributes: {pid: string}
packet:
  filters: ["house/knock"]
  set: {pid: o.patientId}
  time: t.payload.at
  lateness: 10s
  id: o.patientId + "/" + string(t.payload.number)
---
kind: event
name: Thrice
attributes: {pid: string}
pattern:
  aggregate: [{event: Knock}]
  by: [pid]
  window: {last: 1h}
  values: {knocks: count(it.pid)}
  where: it.knocks >= 3
  set: {pid: it.pid}
---
kind: plan
name: knocking
situations: [{id: Knocked, level: 1}]
evolutions: [{event: Thrice, to: Knocked}]
---
kind: scenario
name: knocking
plan: knocking
attribute: pid
"""


def test_late_repeated_and_early_messages_count_as_defined(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    def knock(number: int, seconds: float = 0.0, patient: str = "ann") -> None:
        at = int((time.time() + seconds) * 1000)
        body = json.dumps({"pid": patient, "number": number, "at": at}).encode()
        assert sensor.publish("house/knock", body, qos=1).reason < FAILURE

    with (
        open_house(tmp_path, broker.port, HOUSE + KNOCKS) as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        board = gateway.gateway.emergencies.detection.board

        def knocked() -> str | None:
            return gateway.do(lambda: board.current("knocking", "ann"))

        knock(1)
        for _ in range(3):
            knock(1)  # sent again, as QoS 1 may
        knock(2, -3600)  # later than its type allows
        knock(3, patient="bob")
        knock(4, patient="bob")
        assert knocked() is None
        knock(5, 43_200)  # a device whose clock is half a day ahead: it counts as now
        knock(6, 366 * 86_400)  # one in another year: it is not believed
        knock(7, 2 * 86_400)
        assert knocked() is None
        knock(3)  # the number that Bob has used is none of Ann's
        assert knocked() == "Knocked"


@pytest.mark.parametrize("patient", ["long " * 60, "line\nbreak"], ids=["long", "unprintable"])
def test_an_emergency_of_an_odd_name_can_be_ended_by_hand(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    """By the name that `penstock situation list` shows."""
    enter("sensor").publish("house/pulse", about(patient, 120), qos=1)
    with open_situations(gateway) as situations:
        (shown,) = situations.current("alert", patient)
        asked = situations.request("alert", shown.subject, None, actor="ann", reason="over")
        deadline = time.monotonic() + 60
        while situations.find(asked.request).state is State.READY:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert situation(gateway, patient) is None
        assert situations.current("alert", patient) == []


def test_a_slip_of_the_pen_does_not_pass_for_an_end(gateway: GatewayThread, enter: Login) -> None:
    enter("sensor").publish("house/pulse", about("slip", 120), qos=1)
    with open_situations(gateway) as situations:
        asked = situations.request("alert", "slipp", None, actor="ann", reason="over")
        deadline = time.monotonic() + 60
        while situations.find(asked.request).state is State.READY:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        settled = situations.find(asked.request)
        assert settled.state is State.FAILED
        assert "nothing to end" in settled.trouble
        assert situations.history(subject="slipp") == []
    assert situation(gateway, "slip") == "Alert"


HEAVY = """---
kind: event
name: Heavy
attributes: {pid: string}
pattern:
  aggregate: [{event: Reading}]
  by: [pid]
  window: {last: 1h}
  values: {total: sum(it.value)}
  where: it.total > 1000.0
  set: {pid: it.pid}
---
kind: plan
name: heavy
situations: [{id: Heavy, level: 1}]
evolutions: [{event: Heavy, to: Heavy}]
---
kind: scenario
name: heavy
plan: heavy
attribute: pid
"""


def test_no_number_is_too_large_for_detection(broker: MosquittoServer, tmp_path: Path) -> None:
    """Two readings that come to more than a double holds: nobody else's emergencies suffer."""
    with (
        open_house(tmp_path, broker.port, HOUSE + HEAVY) as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        sensor.publish("house/pulse", about("ann", 120), qos=1)
        for _ in range(3):
            assert sensor.publish("house/pulse", about("big", 1.7e308), qos=1).reason < FAILURE
        assert gateway.do(gateway.gateway.emergencies.detection.is_alive)
        assert situation(gateway, "ann") == "Alert"
        for _ in range(9):
            sensor.publish("house/pulse", about("sum", 150), qos=1)
        board = gateway.gateway.emergencies.detection.board
        assert gateway.do(lambda: board.current("heavy", "sum")) == "Heavy"


def test_no_patients_name_breaks_the_connection_of_all_actions(
    gateway: GatewayThread, enter: Login, capfd: pytest.CaptureFixture[str]
) -> None:
    """The broker closes connections over control characters in a topic."""
    sensor, nurse = enter("sensor"), enter("nurse")
    nurse.subscribe("calls/#", qos=1)
    capfd.readouterr()
    for number in range(5):
        sensor.publish("house/pulse", about(f"odd\n{number}", 120), qos=1)
    sensor.publish("house/pulse", about("even", 120), qos=1)
    assert [it.topic for it in nurse.messages(1)] == ["calls/even"]
    assert "messages wait for the broker" not in capfd.readouterr().err
    assert situation(gateway, "odd\n4") == "Alert"
    sensor.publish("house/pulse", about("even", 10), qos=1)
