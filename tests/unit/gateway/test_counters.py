from __future__ import annotations

import json

import pytest

from penstock.gateway.counters import TURNED_AWAY, Counters
from penstock.mqtt import ProtocolError
from penstock.telemetry import configure, metrics


@pytest.fixture(autouse=True)
def _log_as_json() -> None:
    configure(level="info", style="json")


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    return [
        (it["reason"], it["count"]) for it in lines if it["event"] == "connections were turned away"
    ]


def test_what_is_turned_away_is_logged_once_per_cause_and_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counters = Counters()
    firsts = [counters.turned_away("password") for _ in range(1_000)]
    assert firsts.count(True) == 1
    counters.turned_away("busy")
    assert told(capsys) == []
    counters.publish()
    assert told(capsys) == [("password", 1_000), ("busy", 1)]
    counters.publish()
    assert told(capsys) == []
    assert counters.turned_away("password")
    counters.publish()
    assert told(capsys) == [("password", 1)]


def test_connections_that_clients_did_not_end_are_logged_once_per_cause_and_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends() -> list[dict[str, object]]:
        lines = map(json.loads, capsys.readouterr().err.splitlines())
        return [it for it in lines if it["event"] == "connections were ended"]

    counters = Counters()
    for number in range(1_000):
        text = f"PUBACK: reason code 0x{number % 256:02x} is not one of this packet's"
        counters.ended("protocol", ProtocolError(text), established=number > 0)
    counters.ended("keep_alive", None, established=True)
    counters.ended("client", None, established=True)
    counters.ended("lost", None, established=True)
    assert ends() == []
    counters.publish()
    broken, silent = ends()
    assert (broken["reason"], broken["count"]) == ("protocol", 1_000)
    assert "PUBACK: reason code 0x00" in str(broken["error_text"])
    assert (silent["reason"], silent["count"], "error" in silent) == ("keep_alive", 1, False)
    counters.publish()
    assert ends() == []


def test_every_cause_has_its_series() -> None:
    counters = Counters()
    for cause in TURNED_AWAY:
        before = _count(cause)
        counters.turned_away(cause)
        assert _count(cause) == before + 1


def _count(cause: str) -> float:
    name = "penstock_gateway_turned_away_total"
    return metrics.REGISTRY.get_sample_value(name, {"cause": cause}) or 0.0
