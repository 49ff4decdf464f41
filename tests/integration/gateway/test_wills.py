"""Wills that the gateway keeps, across kill -9: sent by who comes after, once, if allowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.mqtt import Disconnect, Properties, ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.detection.journal import find_leader
from penstock.store.detection.tables import situations_table
from penstock.store.wills import keepers_table, wills_table
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.harness import GatewayProcess, make_process, share
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import WARD, define, login, open_ward, reading, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
TOPIC = "ward/ann/pulse"
LONG = 60.0


def wait_until(holds: Callable[[], object], seconds: float = LONG) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.fixture
def process(broker: AnyBroker, tmp_path: Path) -> GatewayProcess:
    made = make_process(tmp_path, broker.port, settings(tmp_path))
    define(made.config, WARD.replace("WINDOW", "1h"))
    return made


def kept(config: Config) -> int:
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        return len(connection.execute(wills_table.select()).all())


def situation(config: Config, patient: str) -> str | None:
    query = situations_table.select().where(situations_table.c.subject == patient)
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else str(row.situation)


def listen(broker: AnyBroker, text: str) -> RawClient:
    """Listen at the broker itself: to what arrives there, however often."""
    client = RawClient(broker.port)
    client.connect(f"listener-{time.monotonic_ns()}")
    client.subscribe(text, qos=1)
    return client


def heard(client: RawClient, count: int) -> list[tuple[str, bytes]]:
    """Return the messages at the broker: so many, and those that come soon after."""
    seen: list[tuple[str, bytes]] = []

    def look() -> bool:
        seen.extend(client.texts())
        return len(seen) >= count

    wait_until(look)
    return [*seen, *client.texts(quiet=1.5)]


@BROKERS
def test_a_will_outlives_a_killed_gateway_and_is_sent_once(
    broker: AnyBroker, process: GatewayProcess
) -> None:
    with listen(broker, "ward/+/pulse") as at_broker, process:
        lost = login(process.port, "sensor", will=Will(TOPIC, reading(130), 1))
        stranger = login(process.port, "stranger", will=Will("ward/bob/pulse", reading(130), 1))
        polite = login(process.port, "sensor", will=Will("ward/cid/pulse", reading(130), 1))
        polite.close()
        wait_until(lambda: kept(process.config) == 2)
        process.kill()
        assert at_broker.texts(quiet=1.0) == []  # the broker knows nothing of them
        process.start()
        # It is there before anybody can connect; and only what its publisher may write.
        assert heard(at_broker, 1) == [(TOPIC, reading(130))]
        wait_until(lambda: situation(process.config, "ann") == "Alert")
        assert situation(process.config, "bob") is None
        with login(process.port, "doctor") as doctor, login(process.port, "sensor") as sensor:
            doctor.subscribe("ward/#", qos=1)
            wait_until(lambda: sensor.publish("ward/ann/note", b"{}", qos=1).reason < FAILURE)
            assert ("ward/ann/note", b"{}") in doctor.texts(1)
        wait_until(lambda: kept(process.config) == 0)
        at_broker.texts()
        process.kill()
        process.start()
        assert at_broker.texts(quiet=1.5) == []
        for client in (lost, stranger):
            client.vanish()


def test_a_will_comes_before_its_client_is_back(broker: AnyBroker, process: GatewayProcess) -> None:
    """A retained status ends with what the client says after it is back, not with its will."""
    status, will = "ward/ann/status", Will("ward/ann/status", b'"lost"', 1, retain=True)
    with process:
        for number in range(3):
            with_will = login(process.port, "sensor", client_id="sensor:status", will=will)
            with_will.publish(status, b'"here"', qos=1, retain=True)
            wait_until(lambda: kept(process.config) == 1)
            process.kill()
            process.start()
            back = login(process.port, "sensor", client_id="sensor:status", will=will)
            back.publish(status, f'"back {number}"'.encode(), qos=1, retain=True)
            with listen(broker, status) as later:
                found = dict(heard(later, 1))
                assert found[status] == f'"back {number}"'.encode()
            for client in (with_will, back):
                client.send(Disconnect())
                client.vanish()
            wait_until(lambda: kept(process.config) == 0)


def test_a_delayed_will_waits_for_its_client_across_a_kill(
    broker: AnyBroker, process: GatewayProcess
) -> None:
    def late(seconds: int, patient: str) -> Will:
        topic = f"ward/{patient}/pulse"
        return Will(topic, reading(130), 1, properties=Properties(will_delay=seconds))

    with listen(broker, "ward/+/pulse") as at_broker, process:
        gone = login(process.port, "sensor", client_id="sensor:a", will=late(3, "ann"), expiry=600)
        back = login(
            process.port, "sensor", client_id="sensor:b", will=late(500, "bob"), expiry=600
        )
        wait_until(lambda: kept(process.config) == 2)
        process.kill()
        process.start()
        again = login(process.port, "sensor", client_id="sensor:b", clean=False, expiry=600)
        again.close()  # it was back: that it has left again since changes nothing
        assert heard(at_broker, 1) == [(TOPIC, reading(130))]
        wait_until(lambda: kept(process.config) == 0)
        assert situation(process.config, "bob") is None
        for client in (gone, back):
            client.vanish()


def test_a_will_waits_for_detection_instead_of_being_lost(
    broker: AnyBroker, process: GatewayProcess
) -> None:
    """Whoever held the claim is not known to be gone: the will waits until it has run out."""
    with process, listen(broker, TOPIC) as at_broker:
        lost = login(process.port, "sensor", will=Will(TOPIC, reading(130), 1))
        wait_until(lambda: kept(process.config) == 1)
        process.kill()
        with Database.open(process.config.store.connection_url()) as database:
            held = find_leader(database)
            assert held is not None
            with database.write("situations") as connection:
                until = int(time.time() + 8) * 1_000_000
                connection.exec_driver_sql(
                    f"update detectors set place = 'elsewhere', held_until = {until}"  # noqa: S608
                )
        process.start()
        assert heard(at_broker, 1) == [(TOPIC, reading(130))]
        wait_until(lambda: situation(process.config, "ann") == "Alert")
        lost.vanish()


def test_another_gateway_sends_the_wills_of_one_that_is_gone(
    broker: AnyBroker, tmp_path: Path
) -> None:
    one, other = (
        make_process(tmp_path / name, broker.port, settings(tmp_path), **share(tmp_path))
        for name in ("one", "other")
    )
    define(one.config, WARD.replace("WINDOW", "1h"))
    with (
        other,
        one,
        listen(broker, "ward/+/note") as at_broker,
        listen(broker, "ward/+/pulse") as pulses,
    ):
        # The other one detects: it decides on the will of a client that is lost here.
        login(one.port, "sensor", will=Will("ward/far/pulse", reading(130), 1)).vanish()
        login(one.port, "stranger", will=Will("ward/off/pulse", reading(130), 1)).vanish()
        assert heard(pulses, 1) == [("ward/far/pulse", reading(130))]
        wait_until(lambda: situation(one.config, "far") == "Alert")
        assert situation(one.config, "off") is None
        wait_until(lambda: kept(one.config) == 0)
        wills = [Will(f"ward/p{it}/note", b"{}", 1) for it in range(5)]
        lost = [login(one.port, "sensor", will=it) for it in wills]
        wait_until(lambda: kept(one.config) == 5)
        one.kill()
        assert sorted(heard(at_broker, 5)) == sorted((it.topic, b"{}") for it in wills)
        wait_until(lambda: kept(one.config) == 0)
        with (
            Database.open(one.config.store.connection_url()) as database,
            database.read() as connection,
        ):
            assert len(connection.execute(keepers_table.select()).all()) <= 1
        for client in lost:
            client.vanish()


def test_a_will_at_the_broker_is_taken_back_when_policies_come(
    broker: AnyBroker, tmp_path: Path
) -> None:
    """Not even a gateway that is killed then lets it pass unseen, and nobody is told a lie."""
    process = make_process(tmp_path, broker.port, settings(tmp_path))
    will = Will(TOPIC, reading(130), 1)
    with listen(broker, TOPIC) as at_broker, process:
        stranger = login(process.port, "stranger", will=will)
        sensor = login(process.port, "sensor", will=will)
        bystander = login(process.port, "nurse", will=Will("no/events", b"", 1))
        assert kept(process.config) == 0
        define(process.config, WARD.replace("WINDOW", "1h").replace("required", "off"))
        for client in (stranger, sensor):
            client.wait_closed(LONG)
        bystander.settle()  # nobody looks at its will, and it stays
        assert at_broker.texts(quiet=1.0) == []
        back = login(process.port, "sensor", will=will)
        wait_until(lambda: kept(process.config) == 1)
        process.kill()
        process.start()
        assert heard(at_broker, 1) == [(TOPIC, reading(130))]
        wait_until(lambda: situation(process.config, "ann") == "Alert")
        for client in (back, bystander):
            client.vanish()


@pytest.mark.parametrize(
    "will",
    [
        Will("ward/a\x01/note", b"{}"),
        Will("ward/\ufffe/note", b"{}"),
        Will("ward/a/note", b"{}", properties=Properties(user=(("a", "\x7f"),))),
        Will("ward/a/note", b"{}", properties=Properties(content_type="\n")),
    ],
    ids=["topic", "none", "property", "type"],
)
def test_no_will_breaks_the_connection_that_all_wills_share(
    broker: AnyBroker, tmp_path: Path, will: Will
) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        listen(broker, "ward/+/note") as at_broker,
        RawClient(gateway.port) as odd,
    ):
        answer = odd.connect("sensor:odd", username="sensor", password=b"x", will=will)
        assert answer.reason == ReasonCode.TOPIC_NAME_INVALID
        login(gateway.port, "sensor", will=Will("ward/ann/note", b"{}")).vanish()
        assert heard(at_broker, 1) == [("ward/ann/note", b"{}")]
