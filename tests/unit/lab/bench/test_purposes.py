"""Purposes as their paper measured them: the arithmetic, and that each part runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock_lab.bench import purposes
from penstock_lab.bench.gateway.rungs import ALL_RUNGS
from penstock_lab.bench.load.fleet import LoadError
from penstock_lab.bench.load.generator import LoadGenerator
from penstock_lab.bench.load.plan import mesh
from penstock_lab.bench.purposes import Effort, add_overheads, choose_rates, take_medians

SMALL = Effort(rounds=1, seconds=0.2, warm_up=0.1, clients=(4, 6), tabled=6)


def test_all_rungs_but_slow_ones_get_the_same_rate() -> None:
    found = choose_rates({"direct": 100.0, "fop_tree": 60.0, "fop_flat": 2.0, "fos_flat": 90.0})
    assert found == {"direct": 30.0, "fop_tree": 30.0, "fop_flat": 1.0, "fos_flat": 30.0}


def test_overheads_are_those_of_the_papers_tables() -> None:
    found = {
        name: {"rate_250": rate, "subscriptions_per_second": 10.0, "round_trip_ms": trip}
        for name, (_, rate, trip) in purposes.PAPER.items()
    }
    add_overheads(found, ["rate_250"])
    told = {
        name: (round(it["rate_250_overhead"], 1), round(it["round_trip_overhead"], 1))
        for name, it in found.items()
    }
    # As the paper prints them, but for its rounding.
    assert told == {
        "direct": (0.0, 0.0),
        "no_rules": (13.6, 9.0),
        "fos_tree": (12.6, 6.9),
        "fop_cached": (20.1, 19.6),
        "hybrid": (25.0, 34.0),
        "fop_tree": (25.8, 36.2),
        "fop_flat": (43.7, 2167.6),
    }
    assert all(it["subscriptions_per_second_overhead"] == 0 for it in found.values())


def test_figures_are_medians_over_rounds() -> None:
    assert take_medians([{"a": 1.0}, {"a": 9.0}, {"a": 2.0}]) == {"a": 2.0}


def test_the_papers_modes_are_rungs() -> None:
    assert set(purposes.PAPER) <= {rung.name for rung in ALL_RUNGS}
    assert len({rung.name for rung in ALL_RUNGS}) == len(ALL_RUNGS)


@pytest.mark.needs("mosquitto")
def test_a_round_measures_all_and_tells_it_in_tables(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    chosen = [rung for rung in ALL_RUNGS if rung.name in {"direct", "fop_cached"}]
    found = purposes._measure_round(chosen, tmp_path, mosquitto, SMALL, 0)
    for figures in found.values():
        assert min(figures["rate_4"], figures["rate_6"]) > 0
        assert figures["subscriptions_per_second"] > 0
        assert figures["round_trip_ms"] > 0
    assert found["direct"]["rate_6_overhead"] == 0
    load = {"clients": [4, 6], "tabled_clients": 6}
    told = purposes.tables({"load": load, "rungs": found})
    assert [len(table.rows) for table in told] == [2, 2, 2]
    assert all(len(row) == len(table.columns) for table in told for row in table.rows)


@pytest.mark.needs("mosquitto")
def test_a_refused_subscription_makes_a_measurement_void(mosquitto: MosquittoServer) -> None:
    with LoadGenerator(mesh(4), mosquitto.port) as load:
        assert load.subscribe(filters=["a/b", "c/#"], seconds=0.2, warm_up=0.1).messages > 4
    with (
        LoadGenerator(mesh(4), mosquitto.port) as load,
        pytest.raises(LoadError, match="load failed"),
    ):
        load.subscribe(filters=["a/" * 300 + "b"], seconds=0.2, warm_up=0.1)
