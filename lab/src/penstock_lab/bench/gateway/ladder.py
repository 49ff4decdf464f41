"""Climbs the ladder: throughput, CPU and round trips of every rung, round by round.

Method:
- A round measures all rungs one after the other, so that a slow minute of the machine
  meets all of them; what is reported is the median over the rounds, and ratios are taken
  within a round.
- Throughput: a closed loop. Round trips: an open loop at half the throughput that the
  rung has just shown, and right after it the bare broker at that same rate, whose figure
  is taken off as what the gateway did not add.
- How much of the machine all other processes used meanwhile is reported too: where that is
  more than a few hundredths, throughput and round trips tell more about the others.
- Each rung has a gateway process of its own, started for its turn: no rung runs on caches
  or memory of another.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.components import MosquittoServer
from penstock_lab.bench.gateway.rungs import Rung
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.generator import LoadGenerator
from penstock_lab.bench.load.plan import mesh
from penstock_lab.bench.load.usage import OTHERS

CLIENTS = 250
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often is measured."""

    rounds: int
    seconds: float
    warm_up: float


def climb(
    rungs: Sequence[Rung], folder: Path, broker: MosquittoServer, effort: Effort
) -> dict[str, Figures]:
    """Measure every rung; the first must be the bare broker."""
    found: dict[str, list[Figures]] = defaultdict(list)
    for number in range(effort.rounds):
        for rung in rungs:
            place = folder / f"{rung.name}-{rung.qos}-{number}"
            said = f"round {number + 1} of {effort.rounds}: {rung.name}, QoS {rung.qos}"
            print(said, file=sys.stderr, flush=True)
            found[rung.name].append(_measure(rung, place, broker, effort))
        _add_ratios([found[rung.name][-1] for rung in rungs])
    return {name: _medians(rounds) for name, rounds in found.items()}


def _measure(rung: Rung, folder: Path, broker: MosquittoServer, effort: Effort) -> Figures:
    seconds, warm_up = effort.seconds, effort.warm_up
    pids, port = {"broker": broker.pid}, broker.port
    with ExitStack() as stack:
        if rung.gateway:
            gateway = stack.enter_context(
                GatewayServer(folder, broker.port, documents=rung.documents(), lanes=rung.lanes)
            )
            pids["gateway"], port = gateway.pid, gateway.port
        # One set of clients at a time: two would receive each other's messages.
        with LoadGenerator(mesh(CLIENTS, rung.purpose), port, qos=rung.qos) as load:
            most = load.closed(seconds=seconds, warm_up=warm_up, pids=pids)
            rate = most.rate / 2
            trips = load.open(rate=rate, seconds=seconds, warm_up=warm_up)
        beside = trips
        if rung.gateway:
            with LoadGenerator(mesh(CLIENTS), broker.port, qos=rung.qos) as bare:
                beside = bare.open(rate=rate, seconds=seconds, warm_up=warm_up)
    figures = {
        "messages_per_second": most.rate,
        "half_load_rate": rate,
        "median_ms": trips.median,
        "p99_ms": trips.p99,
        "broker_median_ms": beside.median,
        "broker_p99_ms": beside.p99,
        "added_median_ms": trips.median - beside.median,
        "generator_late_p99_ms": trips.late_p99,
    }
    shares = {f"{name}_cpu_us": most.cpu_micros(name) for name in most.cpu if name != OTHERS}
    cores = os.cpu_count() or 1
    # The system counts in hundredths of a second, so that a difference can fall below zero.
    others = max(0.0, most.cpu[OTHERS] / most.seconds / cores)
    return figures | shares | {"others_cpu_share": others}


def _add_ratios(rungs: Sequence[Figures]) -> None:
    direct = rungs[0]["messages_per_second"]
    without_rules = rungs[1]["messages_per_second"]
    for figures in rungs:
        figures["of_direct"] = figures["messages_per_second"] / direct
        figures["of_no_rules"] = figures["messages_per_second"] / without_rules


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {
        name: round(statistics.median(figures[name] for figures in rounds), 4) for name in rounds[0]
    }
