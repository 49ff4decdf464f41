"""Each part of the gateway's benchmark, small: that it runs and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.errors import UnavailableError
from penstock_lab.bench import gateway
from penstock_lab.bench.gateway import (
    idle,
    ladder,
    lanes,
    revocation,
    scenarios,
)
from penstock_lab.bench.gateway.ladder import Effort, climb
from penstock_lab.bench.gateway.rungs import LADDER
from penstock_lab.bench.gateway.server import GatewayServer

pytestmark = pytest.mark.needs("mosquitto")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoServer]:
    with MosquittoServer(tmp_path_factory.mktemp("bench"), persistent=False) as server:
        yield server


def test_the_whole_ladder(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "CLIENTS", 6)
    found = climb(LADDER, tmp_path, broker, Effort(rounds=1, seconds=0.2, warm_up=0.1))
    assert list(found) == [rung.name for rung in LADDER]
    assert found["direct"]["of_direct"] == 1
    assert "gateway_cpu_us" not in found["direct"]
    for name in list(found)[1:]:
        figures = found[name]
        assert figures["messages_per_second"] > 0
        assert figures["gateway_cpu_us"] >= 0
        assert "others_cpu_us" not in figures
        assert figures["others_cpu_share"] >= 0
        assert 0 < figures["median_ms"] <= figures["p99_ms"]
        assert figures["added_median_ms"] == pytest.approx(
            figures["median_ms"] - figures["broker_median_ms"], abs=1e-3
        )
    goals = gateway._goals(found)
    assert set(goals) == set(gateway.GOALS)
    assert all(isinstance(goal["met"], bool) for goal in goals.values())


@pytest.mark.parametrize("qos", [0, 1])
def test_lanes_and_own_connections_at_one_rate(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    monkeypatch.setattr(lanes, "CLIENTS", 6)
    found = lanes.compare(tmp_path, broker, Effort(rounds=1, seconds=0.2, warm_up=0.1), qos=qos)
    passed = {
        name: figures["messages_per_second"] for name, figures in found["closed_loop"].items()
    }
    assert found["one_rate"] == pytest.approx(
        min(rate for name, rate in passed.items() if name != "direct") / 2, abs=1
    )
    assert (
        list(passed) == list(found["at_that_rate"]) == list(lanes.QOS_1_WAYS if qos else lanes.WAYS)
    )
    for name, figures in found["at_that_rate"].items():
        assert 0 < figures["median_ms"] <= figures["p99_ms"]
        assert ("gateway_cpu_us" in figures) == (name != "direct")


def test_goals_are_met_from_the_right_side() -> None:
    assert gateway._met("fop_cached_of_direct", 0.8)
    assert not gateway._met("fop_cached_of_direct", 0.7)
    assert gateway._met("fop_cached_gateway_cpu_us", 12.0)
    assert not gateway._met("fop_cached_gateway_cpu_us", 21.0)


def test_idle_connections_cost_something(
    broker: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_WARM_UP", 5)
    monkeypatch.setattr(idle, "_SETTLE_SECONDS", 0.2)
    found = idle.measure(tmp_path, broker, wanted=300)
    assert found["connections"] == 300
    assert found["bytes_each"] > 0


def test_scenarios(broker: MosquittoServer, tmp_path: Path) -> None:
    found = scenarios.measure(tmp_path, broker, count=10, seconds=1.0)
    assert found["p2p"]["direct"]["delivered"] == found["p2p"]["fop_cached"]["delivered"] == 10
    assert found["fan_out"]["direct"]["delivered"] == 50
    assert found["fan_out"]["fop_cached"]["delivered"] == 50
    assert found["p2p"]["fop_cached"]["gateway_cpu_us"] >= 0


def test_after_the_acknowledgement_the_same_gateway_delivers_nothing(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    found = revocation._measure(tmp_path, broker, None, rounds=3)
    assert found["own_gateway_highest_ms"] == 0
    assert 0 <= found["others_p50_ms"] <= found["others_p99_ms"] <= found["others_highest_ms"]


def test_a_gateway_that_does_not_run_has_no_process_id(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not running"):
        _ = GatewayServer(tmp_path, 1).pid
