"""Emergencies across failures: timers, crashes, restarts, several gateways, and people."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.errors import UnavailableError
from penstock.gateway import counters
from penstock.mqtt import Publish, ReasonCode
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.detection.journal import DetectionStore, JournalBatch
from penstock.store.detection.tables import Cause, State
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway, share
from tests.support.gateway.pair import current, open_situations, wait_until
from tests.support.gateway.ward import WARD, define, login, open_ward, reading, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
KEPT = {"enforcement", "vocabulary", "object", "policy"}


def test_time_alone_closes_access(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/time/#", qos=1)
        sensor.publish("ward/time/warmth", reading(120, 1), qos=1)
        time.sleep(1.0)
        sensor.publish("ward/time/warmth", reading(80, 2), qos=1)
        assert [json.loads(it.payload)["number"] for it in doctor.messages(2)] == [1, 2]
        wait_until(lambda: current(gateway, "time") is None)
        sensor.publish("ward/time/note", reading(0, 3), qos=1)
        assert doctor.texts() == []
        with open_situations(gateway.config) as situations:
            assert [it.event for it in situations.history(subject="time")] == ["Calm", "High"]


def test_a_due_timer_comes_before_a_delivery(broker: MosquittoServer, tmp_path: Path) -> None:
    """Whether or not the loop came to ring it: what is decided later knows of it."""
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/late/#", qos=1)
        sensor.publish("ward/late/warmth", reading(120), qos=1)
        sensor.publish("ward/late/warmth", reading(80), qos=1)
        doctor.messages(2)
        detection = gateway.gateway.emergencies.detection

        gateway.do(detection.timer.cancel)
        time.sleep(2.2)
        sensor.publish("ward/late/note", b"{}", qos=1)
        assert doctor.texts() == []
        assert current(gateway, "late") is None


def test_a_killed_gateway_continues_the_situation(broker: MosquittoServer, tmp_path: Path) -> None:
    process = make_process(tmp_path, broker.port, settings(tmp_path))
    define(process.config, WARD.replace("WINDOW", "1h"))
    with process:
        with login(process.port, "sensor") as sensor:
            for number in range(50):
                value = 120 if number == 49 else 60
                sensor.publish("ward/kept/pulse", reading(value), qos=1)
            sensor.publish("ward/knocked/knock", b"{}", qos=1)
            process.kill()
        process.start()
        with login(process.port, "sensor") as sensor, login(process.port, "doctor") as doctor:
            wait_until(lambda: sensor.publish("ward/kept/note", b"{}", qos=1).reason < FAILURE)
            doctor.subscribe("ward/kept/#", qos=1)
            wait_until(lambda: sensor.publish("ward/x/off", b"{}", qos=1).reason < FAILURE)
            sensor.publish("ward/kept/pulse", reading(70), qos=1)
            assert ("ward/kept/pulse", reading(70)) in doctor.texts(1)
            sensor.publish("ward/kept/off", b"{}", qos=1)
            process.kill()
        process.start()
        with login(process.port, "sensor") as sensor, login(process.port, "doctor") as doctor:
            doctor.subscribe("ward/kept/#", qos=1)
            wait_until(lambda: sensor.publish("ward/x/off", b"{}", qos=1).reason < FAILURE)
            sensor.publish("ward/kept/pulse", reading(70), qos=1)
            assert doctor.texts() == []
            sensor.publish("ward/knocked/knock", b"{}", qos=1)
        with open_situations(process.config) as situations:
            wait_until(lambda: situations.current(scenario="knocking", subject="knocked"))
            past = [(it.source, it.target) for it in situations.history("alert", "kept")]
            assert past == [("Alert", None), (None, "Alert")]


def test_a_crashed_detector_closes_and_recovers(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
        login(gateway.port, "nurse") as nurse,
    ):
        for reader in (doctor, nurse):
            reader.subscribe("ward/crash/#", qos=1)
        sensor.publish("ward/crash/pulse", reading(120), qos=1)
        doctor.messages(1)
        nurse.messages(1)
        detection = gateway.gateway.emergencies.detection

        def fail(*given: object) -> NoReturn:
            raise RuntimeError("broken on purpose")

        gateway.do(lambda: setattr(detection.engine, "apply", fail))
        denied = sensor.publish("ward/crash/pulse", reading(121), qos=1)
        assert denied.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        # Nothing is known of situations until it has begun anew; ordinary rights hold on.
        sensor.publish("ward/crash/note", b"{}", qos=1)
        assert ("ward/crash/note", b"{}") in nurse.texts(1)
        wait_until(lambda: gateway.do(detection.is_alive))
        assert current(gateway, "crash") == "Alert"
        sensor.publish("ward/crash/pulse", reading(90), qos=1)
        assert ("ward/crash/pulse", reading(90)) in doctor.texts(1)


def test_while_nothing_is_detected_emergencies_grant_nothing(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/lost/#", qos=1)
        sensor.publish("ward/lost/pulse", reading(120), qos=1)
        doctor.messages(1)
        # Another process takes the claim: as if this one had not answered for too long.
        with Database.open(gateway.config.store.connection_url()) as database:
            usurper = DetectionStore(database, "elsewhere", seconds=3)
            wait_until(lambda: _take_over(gateway, usurper))
            denied = sensor.publish("ward/lost/pulse", reading(90), qos=1)
            assert denied.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            sensor.publish("ward/lost/note", b"{}", qos=1)
            assert doctor.texts() == []
            report = gateway.running.health.readiness()
            assert "detect" in report.failing["detection"]
            usurper.release()
        wait_until(lambda: gateway.do(gateway.gateway.emergencies.detection.is_alive))
        sensor.publish("ward/lost/note", b"{}", qos=1)
        assert ("ward/lost/note", b"{}") in doctor.texts(1)


def _take_over(gateway: GatewayThread, usurper: DetectionStore) -> bool:
    detection = gateway.gateway.emergencies.detection

    async def stop() -> None:
        await detection.journal.finish()
        detection.writer._store.release()

    gateway.call(stop)
    if usurper.acquire().holder != usurper.holder:
        return False
    wait_until(lambda: not gateway.do(detection.is_alive))
    return True


def test_another_gateway_takes_over_where_one_ends(broker: MosquittoServer, tmp_path: Path) -> None:
    shared = share(tmp_path)
    first = make_process(tmp_path / "first", broker.port, settings(tmp_path / "first"), **shared)
    define(first.config, WARD.replace("WINDOW", "1h"))
    with (
        first,
        run_gateway(
            tmp_path / "second", broker.port, settings(tmp_path / "second"), **shared
        ) as second,
    ):
        with login(first.port, "sensor") as sensor:
            sensor.publish("ward/shared/pulse", reading(120), qos=1)
        detection = second.gateway.emergencies.detection
        with login(second.port, "sensor") as sensor, login(second.port, "doctor") as doctor:
            doctor.subscribe("ward/shared/#", qos=1)
            assert current(second, "shared") == "Alert"
            assert not second.do(detection.is_alive)
            first.kill()
            wait_until(lambda: second.do(detection.is_alive))
            assert current(second, "shared") == "Alert"
            sensor.publish("ward/shared/pulse", reading(91), qos=1)
            assert ("ward/shared/pulse", reading(91)) in doctor.texts(1)


@pytest.mark.parametrize("persons", [1, 2])
def test_people_start_and_end_a_situation(
    broker: MosquittoServer, tmp_path: Path, persons: int
) -> None:
    two_persons = persons > 1
    with (
        open_ward(tmp_path, broker.port, two_persons=two_persons) as gateway,
        open_situations(gateway.config) as situations,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/hand/#", qos=1)
        # Who forgets the second person at the request does not get round the rule.
        asked = situations.request("alert", "hand", "Alert", actor="ann", reason="fell")
        wait_until(lambda: situations.find(asked.request).state in {State.DONE, State.FAILED})
        if two_persons:
            assert "second person" in situations.find(asked.request).trouble
            assert current(gateway, "hand") is None
            asked = situations.request(
                "alert", "hand", "Alert", actor="ann", reason="fell", two_persons=True
            )
            situations.approve(asked.request, actor="bob")
            wait_until(lambda: situations.find(asked.request).state is State.DONE)
        assert current(gateway, "hand") == "Alert"
        sensor.publish("ward/hand/note", b"{}", qos=1)
        assert doctor.texts(1) == [("ward/hand/note", b"{}")]
        (past,) = situations.history(subject="hand")
        assert (past.cause, past.actor, past.reason) == (Cause.MANUAL, "ann", "fell")
        wrong = situations.request("alert", "hand", "Nonsense", actor="ann", reason="a slip")
        wait_until(lambda: situations.find(wrong.request).state is State.FAILED)


def test_a_changed_plan_ends_what_it_no_longer_knows(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/plan/#", qos=1)
        sensor.publish("ward/plan/pulse", reading(120), qos=1)
        doctor.messages(1)
        changed = WARD.replace("WINDOW", "2s").replace("id: Alert", "id: Alarm")
        define(gateway.config, changed.replace(": Alert", ": Alarm"))
        wait_until(lambda: current(gateway, "plan") is None)
        sensor.publish("ward/plan/note", b"{}", qos=1)
        assert doctor.texts() == []
        sensor.publish("ward/plan/pulse", reading(120), qos=1)
        assert current(gateway, "plan") == "Alarm"
        with open_situations(gateway.config) as situations:
            causes = [it.cause for it in situations.history(subject="plan")]
            assert causes == [Cause.DETECTED, Cause.DEFINITIONS, Cause.DETECTED]


def test_a_store_that_fails_holds_acknowledgements_back(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "nurse") as nurse,
    ):
        nurse.subscribe("ward/disk/#", qos=1)
        append = DetectionStore.append
        broken = True

        def fail(self: DetectionStore, batch: JournalBatch) -> None:
            if broken:
                raise UnavailableError("no room on the disk")
            append(self, batch)

        monkeypatch.setattr(DetectionStore, "append", fail)
        sensor.send(Publish.of("ward/disk/pulse", reading(90), qos=1, packet_id=7))
        sensor.send(Publish.of("ward/disk/note", b"{}", qos=1, packet_id=8))
        assert len(nurse.texts(2)) == 2
        with pytest.raises(TimeoutError):
            sensor.expect_answer(7, timeout=1)
        assert sensor.packets == []
        broken = False
        assert sensor.expect_answer(7).reason < FAILURE
        assert sensor.expect_answer(8).reason < FAILURE


def test_events_that_are_no_longer_defined_are_no_trouble(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "nurse") as nurse,
    ):
        nurse.subscribe("ward/#", qos=1)
        sensor.publish("ward/gone/pulse", reading(120), qos=1)
        nurse.messages(1)
        with Database.open(gateway.config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database))
            kept = [it for it in read_text(WARD).documents if it.kind in KEPT]
            pruned = {"event", "action", "plan", "scenario", "emergency-policy"}
            checked.apply(kept, actor="test", reason="", prune=pruned)
        detection = gateway.gateway.emergencies.detection
        wait_until(lambda: gateway.do(lambda: detection.engine is None))
        sensor.publish("ward/gone/pulse", reading(121), qos=1)
        assert ("ward/gone/pulse", reading(121)) in nurse.texts(1)
        assert not gateway.do(lambda: detection.trouble)
        with open_situations(gateway.config) as situations:
            wait_until(lambda: not situations.current())
        define(gateway.config, WARD.replace("WINDOW", "2s"))
        wait_until(lambda: gateway.do(detection.is_alive))
        sensor.publish("ward/gone/pulse", reading(120), qos=1)
        assert current(gateway, "gone") == "Alert"


def test_snapshots_are_saved_beside_and_the_rest_is_repeated(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    process = make_process(tmp_path, broker.port, settings(tmp_path, snapshot="64KiB"))
    define(process.config, WARD.replace("WINDOW", "1h"))
    url = process.config.store.connection_url()
    with process:
        with login(process.port, "sensor") as sensor:
            sensor.publish("ward/first/pulse", reading(120), qos=1)
            for number in range(600):
                sensor.publish(f"ward/p{number % 50}/pulse", reading(60), qos=1)
            sensor.publish("ward/last/pulse", reading(120), qos=1)
            process.kill()
        with Database.open(url) as database:
            data, last, steps = DetectionStore(database, "test", seconds=3).load()
            assert data is not None
            assert 0 < len(steps) < 600 < last
        process.start()
        with open_situations(process.config) as situations:
            held = {it.subject for it in situations.current("alert")}
        assert held == {"first", "last"}


def test_a_gateway_that_slept_grants_nothing_of_what_it_knew(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """While it slept another took over, and ended the emergency."""
    shared = share(tmp_path)
    first = make_process(tmp_path / "first", broker.port, settings(tmp_path / "first"), **shared)
    define(first.config, WARD.replace("WINDOW", "1h"))
    chosen = settings(tmp_path / "second")
    with first, run_gateway(tmp_path / "second", broker.port, chosen, **shared) as second:
        doctor = login(first.port, "doctor")
        nurse = login(first.port, "nurse")
        for reader in (doctor, nurse):
            reader.subscribe("ward/asleep/#", qos=1)
        with login(first.port, "sensor") as sensor:
            sensor.publish("ward/asleep/pulse", reading(120), qos=1)
        doctor.messages(2)
        first.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: second.do(second.gateway.emergencies.detection.is_alive))
            assert current(second, "asleep") == "Alert"
            with login(second.port, "sensor") as sensor:
                sensor.publish("ward/asleep/off", b"{}", qos=1)
                sensor.publish("ward/asleep/note", b"{}", qos=1)
        finally:
            first.send_signal(signal.SIGCONT)
        seen = [topic.rpartition("/")[2] for topic, _ in nurse.texts(4)]
        assert sorted(seen) == ["calls", "note", "off", "pulse"]
        assert doctor.texts() == []
        doctor.close()
        nurse.close()


def test_what_was_acknowledged_survives_any_kill(broker: MosquittoServer, tmp_path: Path) -> None:
    """Against a model of what was acknowledged; a killed process keeps nobody waiting."""
    draw = random.Random(5)
    chosen = settings(tmp_path, snapshot="64KiB", lease="5m")
    process = make_process(tmp_path, broker.port, chosen)
    define(process.config, WARD.replace("WINDOW", "1h"))
    model: dict[str, str] = {}
    with process:
        for _ in range(4):
            with login(process.port, "sensor") as sensor:
                for _ in range(draw.randrange(20, 150)):
                    patient = f"p{draw.randrange(8)}"
                    if draw.random() < 0.5:
                        answer = sensor.publish(f"ward/{patient}/pulse", reading(120), qos=1)
                        model[patient] = "Alert"
                    else:
                        answer = sensor.publish(f"ward/{patient}/off", b"{}", qos=1)
                        model.pop(patient, None)
                    assert answer.reason < FAILURE
                process.kill()
            process.start()
            with open_situations(process.config) as situations:
                assert {it.subject: it.situation for it in situations.current("alert")} == model


def test_what_is_no_event_for_want_of_a_value_is_counted(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    series = counters._IGNORED["incomplete"]
    before = series._value.get()
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        for payload in (b'{"value": null}', b'{"value": "120"}', b"{}"):
            assert sensor.publish("ward/odd/pulse", payload, qos=1).reason < FAILURE
        assert current(gateway, "odd") is None
        wait_until(lambda: series._value.get() == before + 3)
