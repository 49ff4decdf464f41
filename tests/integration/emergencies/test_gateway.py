"""Emergencies on the wire: access that opens and closes by itself, and nobody who forces it."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, Publish, ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.detection.tables import Cause
from penstock.store.detection.tables import transitions_table as transitions
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import login, open_ward, reading

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

Login = Callable[..., RawClient]


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    with open_ward(tmp_path_factory.mktemp("ward"), broker.port) as running:
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


@pytest.fixture
def patient() -> str:
    return f"p-{uuid.uuid4().hex[:8]}"


def situation(gateway: GatewayThread, patient: str, scenario: str = "alert") -> str | None:
    return gateway.do(
        lambda: gateway.gateway.emergencies.detection.board.current(scenario, patient)
    )


def history(gateway: GatewayThread, patient: str) -> list[tuple[str | None, str | None, str]]:
    query = transitions.select().where(transitions.c.subject == patient)
    with (
        Database.open(gateway.config.store.connection_url()) as database,
        database.read() as connection,
    ):
        rows = connection.execute(query.order_by(transitions.c.number)).all()
    return [(row.source, row.target, row.cause) for row in rows]


def test_access_opens_and_closes_by_itself(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    sensor, nurse, doctor = enter("sensor"), enter("nurse"), enter("doctor")
    for reader in (nurse, doctor):
        reader.subscribe("ward/#", qos=1)
    for value in (80, 120, 90):
        sensor.publish(f"ward/{patient}/pulse", reading(value), qos=1)
    # The call goes its own way: it must be here before the emergency ends.
    assert len(nurse.messages(4)) == 4
    seen = [json.loads(it.payload)["value"] for it in doctor.messages(3) if b"value" in it.payload]
    assert seen == [120, 90]
    sensor.publish(f"ward/{patient}/off", b"{}", qos=1)
    sensor.publish(f"ward/{patient}/pulse", reading(70), qos=1)
    assert len(nurse.messages(2)) == 2
    doctor.settle()
    assert doctor.messages(0) == []
    assert situation(gateway, patient) is None
    assert history(gateway, patient) == [
        (None, "Alert", Cause.DETECTED),
        ("Alert", None, Cause.DETECTED),
    ]


def test_an_emergency_opens_nobody_elses_data(enter: Login, patient: str) -> None:
    sensor, doctor = enter("sensor"), enter("doctor")
    doctor.subscribe("ward/+/pulse")
    sensor.publish(f"ward/{patient}/pulse", reading(120), qos=1)
    sensor.publish(f"ward/{patient}-other/pulse", reading(90), qos=1)
    assert doctor.texts(1) == [(f"ward/{patient}/pulse", reading(120))]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("user", ["stranger", "nurse", "doctor"])
def test_an_unauthorised_publisher_changes_nothing(
    gateway: GatewayThread, enter: Login, patient: str, user: str, version: int, qos: int
) -> None:
    detection = gateway.gateway.emergencies.detection
    assert detection.engine is not None
    before = gateway.do(detection.engine.save)
    client, nurse = enter(user, version=version), enter("nurse")
    nurse.subscribe("ward/#")
    answer = client.publish(f"ward/{patient}/pulse", reading(150), qos=qos)
    if qos:
        assert answer.reason == (ReasonCode.NOT_AUTHORIZED if version == V5 else 0)
    client.settle()
    assert situation(gateway, patient) is None
    assert gateway.do(detection.engine.save) == before
    assert nurse.texts() == []


def test_retained_and_queued_messages_are_judged_at_delivery(enter: Login, patient: str) -> None:
    sensor = enter("sensor")
    away = enter("doctor", client_id="doctor:away", expiry=600)
    away.subscribe("ward/+/pulse", qos=1)
    away.vanish()
    sensor.publish(f"ward/{patient}/pulse", reading(80), qos=1, retain=True)
    late = enter("doctor")
    late.subscribe(f"ward/{patient}/pulse")
    assert late.texts() == []
    sensor.publish(f"ward/{patient}/note", b"{}", qos=1, retain=True)
    sensor.publish(f"ward/{patient}/pulse", reading(120), qos=1, retain=True)
    late.subscribe(f"ward/{patient}/+")
    seen = {it.topic for it in late.messages(2)}
    assert {f"ward/{patient}/{it}" for it in ("pulse", "note")} <= seen
    sensor.publish(f"ward/{patient}/off", b"{}", qos=1)
    # Queued while it was allowed, delivered when it is not any more.
    back = enter("doctor", client_id="doctor:away", clean=False, expiry=0)
    assert [it for it in back.texts() if patient in it[0]] == []


def test_an_action_is_published_and_detected(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    nurse, sensor = enter("nurse"), enter("sensor")
    nurse.subscribe(f"ward/{patient}/calls", qos=1)
    sensor.publish(f"ward/{patient}/pulse", reading(120), qos=1)
    (call,) = nurse.messages(1)
    assert json.loads(call.payload) == {"pid": patient}
    assert call.properties.user == ()
    assert not gateway.do(lambda: gateway.gateway.emergencies.detection.outbox.waiting)


def test_actions_that_lead_to_each_other_come_to_an_end(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    nurse, echo = enter("nurse"), enter("echo")
    nurse.subscribe(f"ward/{patient}/echo", qos=1)
    echo.publish(f"ward/{patient}/echo", b"{}", qos=1)
    assert len(nurse.messages(9)) == 9  # one, and eight that follow from it
    assert situation(gateway, patient, "echoing") == "Odd"


def test_clients_cannot_publish_as_an_action(enter: Login, patient: str) -> None:
    nurse, stranger = enter("nurse"), enter("stranger")
    nurse.subscribe(f"ward/{patient}/#")
    forged = (("penstock-publisher", ":actions"), ("penstock-for", "sensor"))
    answer = stranger.publish(f"ward/{patient}/calls", b"{}", qos=1, user=forged)
    assert answer.reason == ReasonCode.NOT_AUTHORIZED
    assert nurse.texts() == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"value": "\\ud800", "pid": "\\ud800"}',
        b'{"value": 1e999}',
        b'{"value": 120, "value": 1}',
        b'{"value": {"deep": 1}}',
        b'{"value": ' + b"9" * 5_000 + b"}",
        b'{"value": NaN}',
    ],
    ids=["empty", "bytes", "open", "deep", "surrogate", "infinite", "twice", "map", "long", "nan"],
)
def test_no_payload_harms_detection(
    gateway: GatewayThread, enter: Login, patient: str, payload: bytes
) -> None:
    sensor = enter("sensor")
    sensor.publish(f"ward/{patient}/pulse", payload, qos=1)
    sensor.publish(f"ward/{patient}/knock", payload, qos=1)
    assert sensor.publish(f"ward/{patient}/pulse", reading(101), qos=1).reason < FAILURE
    assert gateway.do(gateway.gateway.emergencies.detection.is_alive)
    assert situation(gateway, patient) == "Alert"


def test_a_repeated_message_of_qos_2_is_one_event(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    sensor = enter("sensor", client_id="sensor:two", expiry=60)
    knock = Publish.of(f"ward/{patient}/knock", b"{}", qos=2, packet_id=77)
    sensor.send(knock)
    sensor.expect_answer(77)
    sensor.vanish()
    back = enter("sensor", client_id="sensor:two", clean=False, expiry=60)
    knock.first |= 0x08
    back.send(knock)
    back.expect_answer(77)
    back.release(77)
    assert situation(gateway, patient, "knocking") is None
    back.publish(f"ward/{patient}/knock", b"{}", qos=2)
    assert situation(gateway, patient, "knocking") == "Knocked"


def test_a_will_is_judged_when_it_is_sent(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    nurse = enter("nurse")
    nurse.subscribe(f"ward/{patient}/pulse", qos=1)
    stranger = enter("stranger", will=Will(f"ward/{patient}/pulse", reading(130), 1))
    stranger.vanish()
    assert nurse.texts(quiet=0.5) == []
    assert situation(gateway, patient) is None
    sensor = enter("sensor", will=Will(f"ward/{patient}/pulse", reading(130), 1))
    sensor.vanish()
    assert nurse.texts(1) == [(f"ward/{patient}/pulse", reading(130))]
    assert situation(gateway, patient) == "Alert"
    polite = enter("sensor", will=Will(f"ward/{patient}/pulse", reading(131), 1))
    polite.close()
    assert nurse.texts(quiet=0.5) == []


def test_no_access_outlives_its_situation_under_load(
    gateway: GatewayThread, enter: Login, patient: str
) -> None:
    """One connection switches and publishes in turn; others keep the gateway busy."""
    doctor, nurse = enter("doctor"), enter("nurse")
    doctor.subscribe(f"ward/{patient}/pulse")
    nurse.subscribe(f"ward/{patient}/pulse")
    over = threading.Event()

    def disturb(number: int) -> None:
        with login(gateway.port, "sensor") as client:
            while not over.is_set():
                batch = [
                    Publish.of(f"ward/{patient}-{number}/pulse", reading(50 + 100 * (it % 2)))
                    for it in range(50)
                ]
                client.send_bytes(b"".join(it.to_v5(b"") for it in batch))
                client.settle()

    threads = [threading.Thread(target=disturb, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    sensor = enter("sensor")
    allowed: set[int] = set()
    number = 0
    for _ in range(30):
        for values in ((120, *[60] * 20), (60, 60, 0, *[61] * 20)):
            out = []
            for value in values:
                number += 1
                if value in {120, 60}:
                    allowed.add(number)
                topic = f"ward/{patient}/{'pulse' if value else 'off'}"
                out.append(Publish.of(topic, reading(value, number)).to_v5(b""))
            sensor.send_bytes(b"".join(out))
            sensor.settle()
    over.set()
    for thread in threads:
        thread.join()
    time.sleep(0.2)
    seen = {json.loads(it.payload)["number"] for it in doctor.messages()}
    assert seen
    assert seen <= allowed
