"""What time alone ends has ended at every gateway by then, reachable or not."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.mqtt import Publish, ReasonCode
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.pair import LONG, open_situations, pair, publication, publish, wait_until
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.gateway.ward import define, login, reading
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

ORDERS = """
kind: emergency-policy
name: doctor/order
subject: user:doctor
filter: ward/+/order
allow: write
plan: alert
about: o.patientId
"""


def now() -> int:
    """Return the time as messages carry it."""
    return time.time_ns() // 1_000_000


def sent_at(message: Publish) -> int:
    return int(json.loads(message.payload)["number"])


def ends(config: Config) -> dict[str, list[int]]:
    """Return when the alerts of each patient ended, by the record."""
    found: dict[str, list[int]] = {}
    with open_situations(config) as situations:
        for it in situations.history("alert", limit=10_000):
            if it.target is None:
                moment = int(it.at.timestamp() * 1000 + 0.5)
                found.setdefault(it.subject, []).append(moment)
    return found


def doubts(gateway: GatewayThread) -> bool:
    detection = gateway.gateway.emergencies.detection

    def ask() -> bool:
        detection.catch_up(detection.clock.now())
        return detection.follower.awaiting_leader

    return gateway.do(ask)


def note(sensor: RawClient, patient: str, number: int) -> None:
    publish(sensor, f"ward/{patient}/note", reading(0, number))


def test_nobody_reads_on_while_who_detects_stands_still(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """The other gateway knows it for half a minute by its lease, but not beyond the end."""
    with pair(tmp_path, broker, window="4s") as (first, second):
        sensor, doctor, nurse = (login(second.port, it) for it in ("sensor", "doctor", "nurse"))
        for reader in (doctor, nurse):
            reader.subscribe("ward/+/note", qos=1)
        publish(sensor, "ward/lasting/pulse", reading(120))
        publish(sensor, "ward/brief/warmth", reading(120))
        publish(sensor, "ward/brief/warmth", reading(50))
        began = now()
        note(sensor, "brief", began)
        (seen,) = doctor.messages(1)
        assert sent_at(seen) == began
        first.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: doubts(second))
            passed = [now()]
            # It is not longer than the window since: by now it is over.
            while now() < began + 4_500:
                passed.append(now())
                note(sensor, "brief", passed[-1])
                note(sensor, "lasting", passed[-1])
                time.sleep(0.02)
            # Who reads without an emergency waits for nobody.
            assert len(nurse.messages(2 * len(passed) - 1)) == 2 * len(passed) - 1
            held = [sent_at(it) for it in doctor.messages() if it.topic == "ward/brief/note"]
        finally:
            first.send_signal(signal.SIGCONT)
        assert second.gateway.emergencies.detection.follower.joined
        expected = passed[1:]
        lasting: list[int] = []

        def all_arrive() -> bool:
            for it in doctor.messages(quiet=0.2):
                (lasting if it.topic == "ward/lasting/note" else held).append(sent_at(it))
            return len(lasting) >= len(expected)

        wait_until(all_arrive)
        assert lasting == expected
        (over,) = ends(second.config)["brief"]
        assert not [it for it in held if it >= over]
        for client in (sensor, doctor, nurse):
            client.close()


BRIEF = """
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert}
  - {event: High, to: Alert}
  - {event: Calm, from: Alert}
  - {event: "Off", from: Alert}
  - {after: 4s, from: Alert}
"""


def test_a_longest_duration_ends_everywhere_though_nobody_detects(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """The sensor is dead, and the leader stands still: the case is over all the same."""
    with pair(tmp_path, broker) as (first, second):
        epoch = second.gateway.rules.epoch
        define(second.config, BRIEF)
        wait_until(lambda: second.do(lambda: second.gateway.rules.epoch) != epoch)
        sensor, doctor, nurse = (login(second.port, it) for it in ("sensor", "doctor", "nurse"))
        for reader in (doctor, nurse):
            reader.subscribe("ward/+/note", qos=1)
        publish(sensor, "ward/brief/pulse", reading(120))
        began = now()
        note(sensor, "brief", began)
        (seen,) = doctor.messages(1)
        assert sent_at(seen) == began
        first.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: doubts(second))
            passed = [began]
            while now() < began + 4_500:
                passed.append(now())
                note(sensor, "brief", passed[-1])
                time.sleep(0.02)
            assert len(nurse.messages(len(passed))) == len(passed)
            held = [sent_at(it) for it in doctor.messages()]
        finally:
            first.send_signal(signal.SIGCONT)
        wait_until(lambda: "brief" in ends(second.config))
        (over,) = ends(second.config)["brief"]
        assert over <= began + 4_000
        assert not [it for it in held if it >= over]
        with open_situations(second.config) as situations:
            (last,) = situations.history("alert", "brief", limit=1)
        assert (last.cause.value, last.event) == ("duration", None)
        for client in (sensor, doctor, nurse):
            client.close()


def test_a_write_waits_for_what_time_has_changed(broker: MosquittoServer, tmp_path: Path) -> None:
    """Decided at a gateway that does not detect: when it is known, and by what is known then."""
    with pair(tmp_path, broker, window="4s") as (first, second):
        define(second.config, ORDERS)
        sensor = login(second.port, "sensor")
        doctors = {name: login(second.port, "doctor") for name in ("lasting", "brief")}
        publish(sensor, "ward/lasting/pulse", reading(120))
        lasting = doctors["lasting"]
        wait_until(lambda: lasting.publish("ward/lasting/order", qos=1).reason < FAILURE)
        publish(sensor, "ward/brief/warmth", reading(120))
        publish(sensor, "ward/brief/warmth", reading(50))
        first.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: doubts(second))
            for name, doctor in doctors.items():
                doctor.send(publication(f"ward/{name}/order", b"", 500))
            time.sleep(0.5)
            for doctor in doctors.values():
                doctor.messages(quiet=0.1)
                assert not [it for it in doctor.packets if getattr(it, "packet_id", 0) == 500]
        finally:
            first.send_signal(signal.SIGCONT)
        answers = {name: it.expect_answer(500, LONG).reason for name, it in doctors.items()}
        assert answers["lasting"] < FAILURE
        assert answers["brief"] == ReasonCode.NOT_AUTHORIZED
        for client in (sensor, *doctors.values()):
            client.close()


def test_no_access_outlives_its_time_under_load(broker: MosquittoServer, tmp_path: Path) -> None:
    """Against the record: nothing is delivered that was sent after the end."""
    with pair(tmp_path, broker, window="1s") as (first, second):
        ports = (first.port, second.port)
        doctors = [login(port, "doctor") for port in ports]
        for doctor in doctors:
            doctor.subscribe("ward/+/note", qos=0)
        stop = threading.Event()
        failed: list[BaseException] = []

        def watch(number: int) -> None:
            """Let alerts of one after the other begin, and time end them."""
            draw = random.Random(number)
            mine = [login(port, "sensor", client_id=f"sensor:{number}-{port}") for port in ports]
            count = 0
            try:
                while not stop.is_set():
                    count += 1
                    patient = f"p{number}-{count}"
                    publish(draw.choice(mine), f"ward/{patient}/warmth", reading(120))
                    publish(draw.choice(mine), f"ward/{patient}/warmth", reading(50))
                    until = now() + 1_300
                    while now() < until:
                        note(draw.choice(mine), patient, now())
            except (AssertionError, TimeoutError, ClosedError) as error:
                failed.append(error)
            finally:
                for client in mine:
                    client.close()

        threads = [threading.Thread(target=watch, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        wait_until(lambda: failed or len(ends(second.config)) > scaled(8), 200)
        stop.set()
        for thread in threads:
            thread.join(LONG)
        assert not failed
        over = ends(second.config)
        for doctor in doctors:
            seen = [(it.topic.split("/")[1], sent_at(it)) for it in doctor.messages(1)]
            assert len(seen) > 100
            late = [it for it in seen if it[0] in over and it[1] >= over[it[0]][0]]
            assert not late
            doctor.close()
