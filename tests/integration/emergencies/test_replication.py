"""Detection that two gateways share: one detects, the other asks it and knows what it knows."""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer, processes
from penstock.mqtt import Publish, ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from penstock.policy.access.emergencies import SituationsUnknownError
from tests.support.gateway.harness import (
    GatewayProcess,
    GatewayThread,
    make_process,
    run_gateway,
    share,
    write_config,
)
from tests.support.gateway.pair import (
    LONG,
    current,
    detects,
    joined,
    look,
    open_situations,
    pair,
    publication,
    publish,
    wait_until,
)
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.gateway.ward import WARD, define, login, reading, settings
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


def reach(sensor: RawClient, reader: RawClient, topic: str) -> None:
    """Publish until a reader gets it: with a short lease a busy machine may close for a moment."""

    def arrives() -> bool:
        publish(sensor, topic)
        return bool(reader.messages(quiet=0.5))

    wait_until(arrives)


def check_sharing(first: GatewayProcess, second: GatewayThread) -> None:
    """Events at either gateway open and close access at both, with the very message."""
    ports = {"first": first.port, "second": second.port}
    doctors = {name: login(port, "doctor") for name, port in ports.items()}
    sensors = {name: login(port, "sensor") for name, port in ports.items()}
    for doctor in doctors.values():
        doctor.subscribe("ward/+/pulse", "ward/+/off", "ward/+/note", qos=1)
    for begin in ports:
        for finish in ports:
            patient = f"ward/{begin}-{finish}"
            publish(sensors[begin], f"{patient}/pulse", reading(120))
            publish(sensors[finish], f"{patient}/note")
            seen = [(f"{patient}/pulse", reading(120)), (f"{patient}/note", b"{}")]
            for doctor in doctors.values():
                assert sorted(doctor.texts(2)) == sorted(seen)
            publish(sensors[finish], f"{patient}/off")
            publish(sensors[begin], f"{patient}/note")
            assert current(second, f"{begin}-{finish}") is None
            for doctor in doctors.values():
                assert doctor.texts() == []
    for client in (*doctors.values(), *sensors.values()):
        client.close()
    with open_situations(second.config) as situations:
        past = situations.history("alert")
        assert len(past) == 8
        assert not situations.current("alert")


def test_what_happens_at_one_holds_at_the_other(broker: MosquittoServer, tmp_path: Path) -> None:
    with pair(tmp_path, broker) as (first, second):
        check_sharing(first, second)


@pytest.mark.needs("postgresql")
def test_with_postgresql_as_well(
    broker: MosquittoServer, tmp_path: Path, postgres_url: str
) -> None:
    with pair(tmp_path, broker, lease="100s", store={"url": postgres_url}) as (first, second):
        check_sharing(first, second)
        with login(second.port, "sensor") as sensor:
            publish(sensor, "ward/after/knock")
            first.kill()
            publish(sensor, "ward/after/knock")
        assert detects(second)
        assert current(second, "after", "knocking") == "Knocked"


def test_who_may_not_publish_changes_nothing(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        pair(tmp_path, broker) as (_, second),
        login(second.port, "stranger") as stranger,
        login(second.port, "sensor") as sensor,
    ):
        denied = stranger.publish("ward/calm/pulse", reading(120), qos=1)
        assert denied.reason == ReasonCode.NOT_AUTHORIZED
        broken = sensor.publish("ward/calm/pulse", b"no JSON", qos=1)
        assert broken.reason < FAILURE
        assert current(second, "calm") is None
        # What the second one knows comes from the first one alone.
        assert not detects(second)


def test_who_detects_knows_the_definitions_of_who_asks(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with pair(tmp_path, broker) as (_, second), login(second.port, "sensor") as sensor:
        rules = second.gateway.rules
        publish(sensor, "ward/old/pulse", reading(120))
        publish(sensor, "ward/new/pulse", reading(60))
        assert current(second, "new") is None
        wider = WARD.replace("it.value > 100.0", "it.value > 50.0").replace("WINDOW", "1h")
        before = second.do(lambda: rules.epoch)
        define(second.config, wider)
        wait_until(lambda: second.do(lambda: rules.epoch) > before)
        # Whether or not the other one has heard of them by now.
        publish(sensor, "ward/new/pulse", reading(60))
        assert current(second, "new") == "Alert"
        assert current(second, "old") == "Alert"
        renamed = WARD.replace("WINDOW", "1h").replace("id: Alert", "id: Alarm")
        define(second.config, renamed.replace(": Alert", ": Alarm"))
        wait_until(lambda: current(second, "old") is None)
        publish(sensor, "ward/old/pulse", reading(120))
        assert current(second, "old") == "Alarm"


def test_a_will_is_an_event_at_either_gateway(broker: MosquittoServer, tmp_path: Path) -> None:
    with pair(tmp_path, broker) as (_, second), login(second.port, "nurse") as nurse:
        nurse.subscribe("ward/+/pulse", qos=1)
        leaving = login(second.port, "sensor", will=Will("ward/left/pulse", reading(120), qos=1))
        leaving.socket.close()
        wait_until(lambda: current(second, "left") == "Alert")
        assert nurse.texts(1) == [("ward/left/pulse", reading(120))]


def test_actions_and_hands_reach_all(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        pair(tmp_path, broker) as (_, second),
        open_situations(second.config) as situations,
        login(second.port, "sensor") as sensor,
        login(second.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/+/calls", "ward/+/note", qos=1)
        publish(sensor, "ward/act/pulse", reading(120))
        assert [topic for topic, _ in doctor.texts(1)] == ["ward/act/calls"]
        asked = situations.request("alert", "hand", "Alert", actor="ann", reason="fell")
        wait_until(lambda: situations.find(asked.request).settled is not None)
        # It is done when every gateway knows.
        assert current(second, "hand") == "Alert"
        publish(sensor, "ward/hand/note")
        assert doctor.texts(1) == [("ward/hand/note", b"{}")]


def test_a_killed_detector_is_followed_by_another(broker: MosquittoServer, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing counts twice, and nobody has to ask again."""
    draw = random.Random(7)
    model: dict[str, str] = {}
    knocks: dict[str, int] = {}
    common = share(tmp_path)
    ends = [
        make_process(tmp_path / name, broker.port, settings(tmp_path / name, lease="60s"), **common)
        for name in ("a", "b")
    ]
    define(ends[0].config, WARD.replace("WINDOW", "1h"))
    chosen = settings(tmp_path / "stays", lease="60s")
    with ends[0], ends[1], run_gateway(tmp_path / "stays", broker.port, chosen, **common) as stays:
        wait_until(lambda: joined(stays))
        with login(stays.port, "sensor") as sensor:
            for turn in range(3):
                for step in range(draw.randrange(40, 80)):
                    if step == 30 and turn < 2:
                        # In the midst of it, with messages on their way.
                        threading.Timer(draw.random() * 0.02, ends[turn].kill).start()
                    patient = f"p{draw.randrange(6)}"
                    kind = draw.choice(["pulse", "off", "knock"])
                    publish(sensor, f"ward/{patient}/{kind}", reading(120))
                    if kind == "pulse":
                        model[patient] = "Alert"
                    elif kind == "off":
                        model.pop(patient, None)
                    else:
                        knocks[patient] = knocks.get(patient, 0) + 1
        with open_situations(stays.config) as situations:
            assert {it.subject: it.situation for it in situations.current("alert")} == model
            knocked = {it.subject for it in situations.current("knocking")}
        assert knocked == {it for it, count in knocks.items() if count >= 2}
        wait_until(lambda: detects(stays))


def test_an_event_counts_once_across_a_kill(broker: MosquittoServer, tmp_path: Path) -> None:
    """One knock of each patient, with the detector killed among them: nobody has knocked twice."""
    for round_ in range(2):
        folder = tmp_path / str(round_)
        with (
            pair(folder, broker, lease="60s") as (first, second),
            login(second.port, "sensor") as sensor,
        ):
            killer = threading.Timer(0.01 + 0.02 * round_, first.kill)
            killer.start()
            for number in range(0, 100, 10):
                ids = [sensor.next_id() for _ in range(10)]
                for place, packet_id in enumerate(ids):
                    topic = f"ward/{round_}-{number + place}/knock"
                    sensor.send(publication(topic, b"{}", packet_id))
                for packet_id in ids:
                    assert sensor.expect_answer(packet_id, LONG).reason < FAILURE
            killer.join()
            wait_until(lambda: detects(second))
            assert count_knocked(second) == 0
            for number in range(100):
                publish(sensor, f"ward/{round_}-{number}/knock")
            assert count_knocked(second) == 100


def test_a_repeated_message_of_qos_2_is_one_event_at_any_gateway(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """Sent first at the one that detects, which is killed; then at another, and once more."""
    with pair(tmp_path, broker, lease="60s") as (first, second):
        knock = Publish.of("ward/often/knock", b"{}", qos=2, packet_id=77)
        session: dict[str, Any] = {"client_id": "sensor:two", "expiry": 60}
        sensor = login(first.port, "sensor", **session)
        sensor.send(knock)
        sensor.expect_answer(77, LONG)  # it is on record; the client may not have heard that
        sensor.vanish()
        knock.first |= 0x08
        for kills in (False, True):
            if kills:
                first.kill()
                wait_until(lambda: detects(second))
            back = login(second.port, "sensor", clean=False, **session)
            back.send(knock)
            assert back.expect_answer(77, LONG).reason < FAILURE
            back.vanish()
        assert count_knocked(second) == 0
        with login(second.port, "sensor") as other:
            publish(other, "ward/often/knock")
        assert count_knocked(second) == 1


def count_knocked(gateway: GatewayThread) -> int:
    engine = gateway.gateway.emergencies.detection.engine
    assert engine is not None
    return gateway.do(lambda: sum(it[0] == "knocking" for it in engine.situations()))


def test_who_cannot_be_heard_is_not_gone_by(broker: MosquittoServer, tmp_path: Path) -> None:
    """A detector that stands still: its neighbour grants nothing, then takes over."""
    with (
        pair(tmp_path, broker, lease="5s") as (first, second),
        login(second.port, "sensor") as sensor,
        login(second.port, "doctor") as doctor,
        login(second.port, "nurse") as nurse,
    ):
        for reader in (doctor, nurse):
            reader.subscribe("ward/still/note", qos=1)
        publish(sensor, "ward/still/pulse", reading(120))
        reach(sensor, doctor, "ward/still/note")
        assert set(nurse.texts(1)) == {("ward/still/note", b"{}")}
        first.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not joined(second))
            if not detects(second):
                with pytest.raises(SituationsUnknownError):
                    look(second, "still")
            # What could be an event waits for whoever detects next.
            publish(sensor, "ward/still/off")
            assert detects(second)
            publish(sensor, "ward/still/note")
            assert nurse.texts(1) == [("ward/still/note", b"{}")]
            assert doctor.texts() == []
        finally:
            first.send_signal(signal.SIGCONT)
        # The first one finds that it was overtaken, and asks the second one from now on.
        with login(first.port, "sensor") as there:
            wait_until(lambda: _passes(there, "ward/still/pulse", reading(120)))
        assert current(second, "still") == "Alert"


def test_a_neighbour_that_stood_still_grants_nothing_of_what_it_knew(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """The end of an emergency is acknowledged when nobody can go by it any more."""
    common = share(tmp_path)
    chosen = settings(tmp_path / "one", lease="10s")
    define(
        write_config(tmp_path / "one", broker.port, chosen, **common), WARD.replace("WINDOW", "1h")
    )
    second = make_process(tmp_path / "two", broker.port, settings(tmp_path / "two"), **common)
    with run_gateway(tmp_path / "one", broker.port, chosen, **common) as first, second:
        leader = first.gateway.emergencies.detection.leader
        wait_until(lambda: first.do(lambda: [it.synced for it in leader._peers.values()]))
        doctor, nurse = (login(second.port, user) for user in ("doctor", "nurse"))
        for reader in (doctor, nurse):
            reader.subscribe("ward/stood/note", qos=1)
        with login(first.port, "sensor") as sensor:
            publish(sensor, "ward/stood/pulse", reading(120))
            reach(sensor, doctor, "ward/stood/note")
            assert set(nurse.texts(1)) == {("ward/stood/note", b"{}")}
            second.send_signal(signal.SIGSTOP)
            try:
                publish(sensor, "ward/stood/off")
                publish(sensor, "ward/stood/note", reading(2))
            finally:
                second.send_signal(signal.SIGCONT)
        assert nurse.texts(1) == [("ward/stood/note", reading(2))]
        assert doctor.texts() == []
        for reader in (doctor, nurse):
            reader.close()


def _passes(client: RawClient, topic: str, payload: bytes) -> bool:
    packet_id = client.next_id()
    client.send(publication(topic, payload, packet_id))
    return bool(client.expect_answer(packet_id, LONG).reason < FAILURE)


def test_a_gateway_with_another_key_is_not_believed(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    common = share(tmp_path)
    first = make_process(tmp_path / "one", broker.port, settings(tmp_path / "one"), **common)
    define(first.config, WARD.replace("WINDOW", "1h"))
    common["audit"] = common["audit"] | {"pseudonym_key": str(tmp_path / "keys" / "other.key")}
    chosen = settings(tmp_path / "two")
    with (
        first,
        run_gateway(tmp_path / "two", broker.port, chosen, **common) as second,
        login(second.port, "sensor") as sensor,
    ):
        denied = sensor.publish("ward/key/pulse", reading(120), qos=1)
        assert denied.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        failing = second.running.health.readiness().failing["detection"]
        assert "another gateway detects" in failing
        assert "does not have the same secret" in failing
        with login(first.port, "sensor") as sensor_there:
            assert sensor_there.publish("ward/key/pulse", reading(120), qos=1).reason < FAILURE


def test_no_access_outlives_its_situation_anywhere(broker: MosquittoServer, tmp_path: Path) -> None:
    """Under load, with events at both gateways: against what was acknowledged."""
    with pair(tmp_path, broker) as (first, second):
        ports = (first.port, second.port)
        doctors = [login(port, "doctor") for port in ports]
        for doctor in doctors:
            doctor.subscribe("ward/+/note", qos=0)
        stop = threading.Event()
        failed: list[BaseException] = []
        count_of = dict.fromkeys(range(6), 0)

        def watch(number: int) -> None:
            """Begin and end an emergency of one after the other; what comes then is secret."""
            draw = random.Random(number)
            mine = [login(port, "sensor", client_id=f"sensor:{number}-{port}") for port in ports]
            count = 0
            try:
                while not stop.is_set():
                    count_of[number] = count
                    patient = f"ward/p{number}-{count}"
                    publish(draw.choice(mine), f"{patient}/pulse", reading(120))
                    for _ in range(draw.randrange(4)):
                        count += 2
                        draw.choice(mine).publish(f"{patient}/note", reading(0, count), qos=1)
                    publish(draw.choice(mine), f"{patient}/off")
                    for _ in range(draw.randrange(1, 4)):
                        count += 2
                        draw.choice(mine).publish(f"{patient}/note", reading(0, count + 1), qos=1)
            except (AssertionError, TimeoutError, ClosedError) as error:
                failed.append(error)
            finally:
                for client in mine:
                    client.close()

        threads = [threading.Thread(target=watch, args=(number,)) for number in count_of]
        for thread in threads:
            thread.start()
        # So many emergencies of each that those of others begin and end meanwhile.
        wait_until(lambda: failed or min(count_of.values()) > scaled(20), 200)
        stop.set()
        for thread in threads:
            thread.join(LONG)
        assert not failed
        for doctor in doctors:
            seen = [int(it.payload.split(b'"number": ')[1][:-1]) for it in doctor.messages(1)]
            assert seen
            assert not [number for number in seen if number % 2]
            doctor.close()


def test_workers_share_detection(broker: MosquittoServer, tmp_path: Path) -> None:
    port = processes.free_port()
    chosen = settings(tmp_path / "one", lease="300s") | {"listeners": {"mqtt": {"port": port}}}
    config_of = make_process(tmp_path / "one", broker.port, chosen | {"workers": 2})
    define(config_of.config, WARD.replace("WINDOW", "1h"))
    file = config_of.config.file
    assert file is not None
    command = [sys.executable, "-m", "penstock", "--config", str(file), "gateway"]
    started = processes.start(
        command, log=tmp_path / "gateway.log", ready=lambda: processes.accepts(port)
    )
    try:
        sensors = [login(port, "sensor", client_id=f"sensor:{number}") for number in range(12)]
        doctors = [login(port, "doctor", client_id=f"doctor:{number}") for number in range(12)]
        for doctor in doctors:
            doctor.subscribe("ward/+/note", qos=1)
        for number, sensor in enumerate(sensors):
            wait_until(lambda one=sensor: _passes(one, "ward/x/off", b"{}"))  # type: ignore[misc]
            publish(sensor, f"ward/w{number}/pulse", reading(120))
            publish(sensors[-number], f"ward/w{number}/note")
            publish(sensors[number - 6], f"ward/w{number}/off")
            publish(sensors[-number], f"ward/w{number}/note", reading(1))
        wanted = {(f"ward/w{number}/note", b"{}") for number in range(12)}
        for doctor in doctors:
            assert set(doctor.texts(12)) == wanted
        for client in (*sensors, *doctors):
            client.close()
    finally:
        processes.stop(started)
