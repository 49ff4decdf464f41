"""Situations that are held by hand, and a clock that is ahead, through real gateways."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt.codes import FAILURE
from penstock.store.detection.situations import Situations
from penstock.store.detection.tables import Cause, State
from tests.support.gateway.harness import run_gateway, write_config
from tests.support.gateway.pair import current, detects, open_situations, pair, wait_until
from tests.support.gateway.ward import WARD, define, login, reading, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

HOUR = 3_600_000


def put(situations: Situations, patient: str, situation: str | None, hold: int = 0) -> None:
    asked = situations.request("alert", patient, situation, actor="ann", reason="fell", hold=hold)
    wait_until(lambda: situations.find(asked.request).state is State.DONE)


def test_who_is_held_stays_so_when_another_gateway_takes_over(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        pair(tmp_path, broker, lease="60s") as (first, second),
        open_situations(second.config) as situations,
    ):
        put(situations, "held", "Alert", hold=HOUR)
        with login(first.port, "sensor") as sensor:
            assert sensor.publish("ward/held/off", b"{}", qos=1).reason < FAILURE
        assert current(second, "held") == "Alert"
        first.kill()
        wait_until(lambda: detects(second))
        with login(second.port, "sensor") as sensor:
            assert sensor.publish("ward/held/off", b"{}", qos=1).reason < FAILURE
        assert current(second, "held") == "Alert"
        (standing,) = situations.current("alert", "held")
        assert standing.held_until is not None
        assert (standing.held_until - standing.since).total_seconds() * 1000 == HOUR
        put(situations, "held", None)
        assert current(second, "held") is None
        assert [it.cause for it in situations.history(subject="held")] == [Cause.MANUAL] * 2


def test_time_ends_what_is_held_at_all_gateways(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        pair(tmp_path, broker) as (first, second),
        open_situations(second.config) as situations,
        login(first.port, "sensor") as sensor,
    ):
        put(situations, "brief", "Alert", hold=1_500)
        sensor.publish("ward/brief/off", b"{}", qos=1)
        wait_until(lambda: situations.current("alert", "brief") == [])
        assert current(second, "brief") is None
        ended, began = situations.history(subject="brief")
        assert (ended.source, ended.target, ended.cause) == ("Alert", None, Cause.TIME)
        assert (began.cause, began.held_until) == (Cause.MANUAL, ended.at)


def test_an_end_that_tells_the_true_time_counts_while_the_clock_is_ahead(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    off = 'filters: ["ward/+/off"]\n  set: {pid: o.patientId}\n'
    text = WARD.replace(off, f"{off}  time: t.payload.number\n  lateness: 60s\n")
    assert text != WARD
    chosen = settings(tmp_path, lease="60s")
    define(write_config(tmp_path, broker.port, chosen), text.replace("WINDOW", "1h"))
    with (
        run_gateway(tmp_path, broker.port, chosen) as gateway,
        login(gateway.port, "sensor") as sensor,
    ):
        clock = gateway.gateway.emergencies.detection.clock
        gateway.do(lambda: clock.go_on_from(clock.now() + 24 * HOUR))
        assert sensor.publish("ward/true/pulse", reading(120), qos=1).reason < FAILURE
        assert current(gateway, "true") == "Alert"
        told = json.dumps({"number": time.time_ns() // 1_000_000}).encode()
        assert sensor.publish("ward/true/off", told, qos=1).reason < FAILURE
        assert current(gateway, "true") is None
