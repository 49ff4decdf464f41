"""Definitions of events that change while messages pass: only what could be an event waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.components import MosquittoServer
from penstock.gateway.detection.engine_reload import EngineReload
from penstock.mqtt import Publish
from penstock.mqtt.codes import FAILURE
from penstock.policy.access.emergencies import SituationsUnknownError
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.ward import WARD, define, login, open_ward, reading

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
LONG = 60.0


def wait_until(holds: Callable[[], object], seconds: float = LONG) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def current(gateway: GatewayThread, patient: str) -> str | None:
    board = gateway.gateway.emergencies.detection.board
    return gateway.do(lambda: board.current("alert", patient))


def program_of(gateway: GatewayThread) -> Program | None:
    """Return the definitions that events are detected by."""
    engine = gateway.do(lambda: gateway.gateway.emergencies.detection.engine)
    return None if engine is None else engine.program


class Held:
    """A change of definitions that takes until it is let go."""

    def __init__(self, gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gateway = gateway
        self._go_on = gateway.do(asyncio.Event)
        self.made: list[Program] = []
        make = EngineReload._make

        async def make_late(
            reload: EngineReload, engine: Engine, program: Program
        ) -> tuple[Engine, bytes, list[int] | None]:
            self.made.append(program)
            await self._go_on.wait()
            return await make(reload, engine, program)

        monkeypatch.setattr(EngineReload, "_make", make_late)

    def begins(self, count: int = 1) -> None:
        wait_until(lambda: len(self.made) >= count)

    def ends(self) -> None:
        self._gateway.do(self._go_on.set)


@contextmanager
def held(
    folder: Path, broker: MosquittoServer, patch: pytest.MonkeyPatch, window: str = "1h"
) -> Iterator[tuple[GatewayThread, Held]]:
    with open_ward(folder, broker.port, window=window) as gateway:
        yield gateway, Held(gateway, patch)


def test_only_what_could_be_an_event_waits(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        held(tmp_path, broker, monkeypatch) as (gateway, change),
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "sensor", client_id="sensor:other") as other,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/+/note", qos=1)
        sensor.publish("ward/on/pulse", reading(120), qos=1)
        wider = WARD.replace("it.value > 100.0", "it.value > 50.0").replace("WINDOW", "1h")
        define(gateway.config, wider)
        change.begins()
        sensor.send(Publish.of("ward/new/pulse", reading(60), qos=1, packet_id=7))
        # The emergency that there is lasts, and its messages are delivered.
        assert other.publish("ward/on/note", b"{}", qos=1).reason < FAILURE
        assert doctor.texts(1) == [("ward/on/note", b"{}")]
        with pytest.raises(TimeoutError):
            sensor.expect_answer(7, timeout=0.5)
        assert current(gateway, "new") is None
        change.ends()
        assert sensor.expect_answer(7, timeout=LONG).reason < FAILURE
        assert current(gateway, "new") == "Alert"
        assert current(gateway, "on") == "Alert"


def test_what_is_no_longer_defined_ends_at_once(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        held(tmp_path, broker, monkeypatch) as (gateway, change),
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
    ):
        doctor.subscribe("ward/+/note", qos=1)
        sensor.publish("ward/ends/pulse", reading(120), qos=1)
        renamed = WARD.replace("WINDOW", "1h").replace("id: Alert", "id: Alarm")
        define(gateway.config, renamed.replace(": Alert", ": Alarm"))
        change.begins()
        sensor.publish("ward/ends/note", b"{}", qos=1)
        assert doctor.texts() == []
        # And once more, before the first change is done.
        define(gateway.config, WARD.replace("WINDOW", "2h"))
        wait_until(
            lambda: (
                gateway.do(lambda: gateway.gateway.emergencies.detection.program) not in change.made
            )
        )
        change.ends()
        change.begins(2)
        detection = gateway.gateway.emergencies.detection
        wait_until(lambda: not gateway.do(lambda: detection.reload.busy))
        assert program_of(gateway) is change.made[-1]
        sensor.publish("ward/ends/pulse", reading(120), qos=1)
        assert current(gateway, "ends") == "Alert"


def test_a_timer_that_is_due_meanwhile_closes_access(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        held(tmp_path, broker, monkeypatch, "2s") as (gateway, change),
        login(gateway.port, "sensor") as sensor,
        login(gateway.port, "doctor") as doctor,
        login(gateway.port, "nurse") as nurse,
    ):
        for reader in (doctor, nurse):
            reader.subscribe("ward/+/note", qos=1)
        sensor.publish("ward/due/warmth", reading(120), qos=1)
        sensor.publish("ward/due/warmth", reading(80), qos=1)
        assert current(gateway, "due") == "Alert"
        define(
            gateway.config, WARD.replace("WINDOW", "2s").replace("it.knocks >= 2", "it.knocks >= 3")
        )
        change.begins()
        reload = gateway.gateway.emergencies.detection.reload
        wait_until(lambda: gateway.do(lambda: reload.blind))
        with pytest.raises(SituationsUnknownError):
            current(gateway, "due")
        sensor.publish("ward/due/note", b"{}", qos=1)
        assert nurse.texts(1) == [("ward/due/note", b"{}")]
        assert doctor.texts() == []
        change.ends()
        wait_until(lambda: not gateway.do(lambda: reload.busy))
        wait_until(lambda: current(gateway, "due") is None)


def test_what_was_known_under_old_definitions_survives_a_restart(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        open_ward(tmp_path, broker.port, window="1h") as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        sensor.publish("ward/kept/knock", b"{}", qos=1)
        sensor.publish("ward/kept/pulse", reading(120), qos=1)
        before = program_of(gateway)
        define(
            gateway.config, WARD.replace("WINDOW", "1h").replace("value > 100.0", "value > 90.0")
        )
        wait_until(lambda: program_of(gateway) is not before)
        sensor.publish("ward/kept/knock", b"{}", qos=1)
        sensor.publish("ward/new/pulse", reading(95), qos=1)
    with open_ward(tmp_path, broker.port, window="1h") as gateway:
        assert current(gateway, "kept") == "Alert"
        assert current(gateway, "new") == "Alert"
        board = gateway.gateway.emergencies.detection.board
        assert gateway.do(lambda: board.current("knocking", "kept")) == "Knocked"
