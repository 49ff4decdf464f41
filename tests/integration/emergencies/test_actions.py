"""Messages of actions on the wire: none is lost for being many, and none stops the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock_lab.demo
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import StepResult
from penstock.components import MosquittoServer
from penstock.gateway.publishing import actions
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.house import about, open_house, situation
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login, open_ward

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
DAY = 86_400_000
CONTACTS = [f"guest-{number:03}" for number in range(120)]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waiting(gateway: GatewayThread) -> int:
    return gateway.do(lambda: len(gateway.gateway.emergencies.detection.outbox.waiting))


@contextmanager
def listen(broker: MosquittoServer, *filters: str) -> Iterator[RawClient]:
    """Hear what arrives at the broker, whoever may read it."""
    with RawClient(broker.port) as reader:
        reader.connect("listener")
        for it in filters:
            reader.subscribe(it, qos=1)
        yield reader


@contextmanager
def open_home(folder: Path, broker: MosquittoServer, **emergencies: Any) -> Iterator[GatewayThread]:
    """Run the nursing home of the case study."""
    passwords = write_passwords(folder / "passwords", {"sensor-2": "x"})
    chosen: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "emergencies": {"lease": "3s", **emergencies},
    }
    texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
    define(write_config(folder, broker.port, chosen), "\n---\n".join(texts))
    with run_gateway(folder, broker.port, chosen) as running:
        yield running


def meet(gateway: GatewayThread) -> None:
    """Let patient 2 have been in one room with all contacts, yesterday at noon."""
    detection = gateway.gateway.emergencies.detection

    def sit_together() -> None:
        assert detection.engine is not None
        (presence,) = detection.engine.presences
        noon = detection.clock.now() // DAY * DAY - DAY // 2
        for second in range(902):
            for who in ("patient-2", *CONTACTS):
                presence.add(who, "dining", noon + 1000 * second)

    gateway.do(sit_together)


def fall_ill(gateway: GatewayThread) -> None:
    with login(gateway.port, "sensor-2") as sensor:
        fever = json.dumps({"pid": "patient-2", "temperature": 39.0}).encode()
        assert sensor.publish("physiological/temperature", fever, qos=1).reason < FAILURE


def possible(gateway: GatewayThread) -> list[str]:
    board = gateway.gateway.emergencies.detection.board
    return gateway.do(
        lambda: [who for who in CONTACTS if board.current("covid", who) == "Possible"]
    )


def named(client: RawClient, count: int) -> list[str]:
    return [json.loads(it.payload)["pid"] for it in client.messages(count)]


def test_the_rate_delays_messages_and_loses_none(broker: MosquittoServer, tmp_path: Path) -> None:
    names = [f"crowd-{number}" for number in range(60)]
    with (
        listen(broker, "calls/#") as reader,
        open_house(tmp_path, broker.port, action_rate=20) as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        for name in names:
            assert sensor.publish("house/pulse", about(name, 120), qos=1).reason < FAILURE
        assert {situation(gateway, name) for name in names} == {"Alert"}
        until(lambda: not waiting(gateway))
        assert [it.topic for it in reader.messages(60)] == [f"calls/{name}" for name in names]


def test_an_outbreak_reaches_every_contact_whatever_the_rate(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """What actions mean takes effect at once: the messages themselves come when they may."""
    with open_home(tmp_path, broker, action_rate=1) as gateway:
        meet(gateway)
        fall_ill(gateway)
        until(lambda: possible(gateway) == CONTACTS)
        assert waiting(gateway) > len(CONTACTS)  # notices and warnings


def test_what_waits_is_sent_after_a_restart_in_its_order(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with listen(broker, "closecontact") as reader:
        with open_home(tmp_path, broker, action_rate=1) as gateway:
            meet(gateway)
            fall_ill(gateway)
            until(lambda: possible(gateway) == CONTACTS)
        with open_home(tmp_path, broker, action_rate=200) as gateway:
            assert possible(gateway) == CONTACTS
            until(lambda: not waiting(gateway))
        # What was not confirmed when the first one ended may come twice.
        assert list(dict.fromkeys(named(reader, len(CONTACTS)))) == CONTACTS


def test_what_was_not_detected_is_after_a_restart(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_home(tmp_path, broker) as gateway, monkeypatch.context() as patch:
        patch.setattr(actions.Actions, "_go_on_in", lambda *_: None)
        meet(gateway)
        fall_ill(gateway)
        begun = possible(gateway)
        assert len(begun) == actions.AT_ONCE - 1  # after the warning of patient 2
    with open_home(tmp_path, broker) as gateway:
        until(lambda: possible(gateway) == CONTACTS)
        until(lambda: not waiting(gateway))
        # Each took effect once: one notice to each, one warning to each and to patient 2.
        assert gateway.gateway.emergencies.detection.outbox.last == 2 * len(CONTACTS) + 1


def test_what_was_not_detected_is_known_from_the_journal_alone(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_home(tmp_path, broker) as gateway:
        detection = gateway.gateway.emergencies.detection
        meet(gateway)

        def save() -> None:
            detection.journal.snapshot_due = True
            detection.journal.add()

        gateway.do(save)
        gateway.call(detection.journal.finish)
        with monkeypatch.context() as patch:
            patch.setattr(actions.Actions, "_go_on_in", lambda *_: None)
            fall_ill(gateway)
            assert len(possible(gateway)) == actions.AT_ONCE - 1
        gateway.do(lambda: detection.crash(RuntimeError("broken on purpose")))
        until(lambda: gateway.do(detection.is_alive))
        until(lambda: possible(gateway) == CONTACTS)
        until(lambda: not waiting(gateway))
        assert gateway.do(lambda: detection.outbox.last) == 2 * len(CONTACTS) + 1


def test_where_too_many_wait_the_newest_are_not_sent_but_take_effect(
    broker: MosquittoServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "LIMIT", 130)
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(actions._log, "error", lambda _, **rest: logged.append(rest))
    with (
        listen(broker, "closecontact", "warning") as reader,
        open_home(tmp_path, broker, action_rate=1) as gateway,
    ):
        meet(gateway)
        fall_ill(gateway)
        until(lambda: possible(gateway) == CONTACTS)
        until(lambda: not gateway.do(gateway.gateway.emergencies.detection.outbox.fresh))
        assert 50 < waiting(gateway) <= 130
        sent = named(reader, 1)  # one, and another for each second that has passed
        assert sent == ["patient-2", *CONTACTS][: len(sent)]
    assert {it["reason"] for it in logged} == {"full"}
    assert sum(it["count"] for it in logged) > 0  # what follows is told a second later
    assert {name for it in logged for name in it} == {"reason", "count"}  # nobody is named


def test_where_too_many_are_to_be_detected_the_newest_are_given_up(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LIMIT", 20)
    with open_home(tmp_path, broker) as gateway:
        meet(gateway)
        fall_ill(gateway)
        until(lambda: not waiting(gateway))
        assert possible(gateway) == CONTACTS[:19]
    with open_home(tmp_path, broker) as gateway:
        assert possible(gateway) == CONTACTS[:19]


def test_a_message_that_detection_fails_on_does_not_come_again(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Engine.apply
    failed: list[str] = []

    def fail_deep(engine: Engine, packet: Packet, *given: Any) -> StepResult:
        if packet.depth:
            failed.append(packet.topic)
            raise RuntimeError("broken on purpose")
        return apply(engine, packet, *given)

    monkeypatch.setattr(Engine, "apply", fail_deep)
    with (
        open_ward(tmp_path, broker.port) as gateway,
        login(gateway.port, "echo") as echo,
        login(gateway.port, "sensor") as sensor,
    ):
        detection = gateway.gateway.emergencies.detection
        assert echo.publish("ward/p-1/echo", b"{}", qos=1).reason < FAILURE
        until(lambda: gateway.do(detection.is_alive))
        assert sensor.publish("ward/p-1/knock", b"{}", qos=1).reason < FAILURE
        assert failed == ["ward/p-1/echo"]
        assert waiting(gateway) == 0
