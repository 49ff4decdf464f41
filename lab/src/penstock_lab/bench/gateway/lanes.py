"""Publish lanes and own connections compared: in turns, and at one and the same rate.

Half of what each passes is another rate for each, and round trips at other rates say nothing about
the way. So the gateways run side by side, each idle in the others' turns.

Method:
- A closed loop at each, and at the bare broker, in turns: throughput and CPU per message.
- Then an open loop at each, in turns, at half of what the slowest gateway has passed: round
  trips and CPU per message at that rate.
- Every second round goes the other way round, so that nobody always comes first.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer
from penstock_lab.bench.gateway.ladder import CLIENTS, Effort
from penstock_lab.bench.gateway.rungs import DIRECT, FOP_CACHED, FOP_OWN, Rung
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.generator import LoadGenerator
from penstock_lab.bench.load.open import RoundTrips
from penstock_lab.bench.load.plan import mesh

WAYS = {
    "direct": DIRECT,
    "lanes": FOP_CACHED,
    "one_lane": replace(FOP_CACHED, lanes=1),
    "sixteen_lanes": replace(FOP_CACHED, lanes=16),
    "own_connections": FOP_OWN,
}
QOS_1_WAYS = {name: WAYS[name] for name in ("direct", "lanes", "own_connections")}
"""At QoS 1 there is nothing that takes a lane: its number says nothing."""
_Found = dict[str, list[dict[str, float]]]


def compare(folder: Path, broker: MosquittoServer, effort: Effort, *, qos: int) -> dict[str, Any]:
    """Measure the bare broker and the gateway each way; medians over the rounds."""
    ways = QOS_1_WAYS if qos else WAYS
    with ExitStack() as stack:
        gateways = {
            name: stack.enter_context(_start(rung, folder / name, broker))
            for name, rung in ways.items()
            if rung.gateway
        }

        def load(name: str) -> tuple[LoadGenerator, dict[str, int]]:
            gateway, pids = gateways.get(name), {"broker": broker.pid}
            port = gateway.port if gateway else broker.port
            if gateway:
                pids["gateway"] = gateway.pid
            return LoadGenerator(mesh(CLIENTS, ways[name].purpose), port, qos=qos), pids

        most: _Found = defaultdict(list)
        for name in _turns(ways, effort.rounds, f"throughput, QoS {qos}"):
            generator, pids = load(name)
            with generator:
                found = generator.closed(seconds=effort.seconds, warm_up=effort.warm_up, pids=pids)
            shares = {f"{it}_cpu_us": found.cpu_micros(it) for it in pids}
            most[name].append({"messages_per_second": found.rate, **shares})
        rate = min(_median(most[name], "messages_per_second") for name in gateways) / 2
        trips: _Found = defaultdict(list)
        for name in _turns(ways, effort.rounds, f"{rate:.0f} messages a second, QoS {qos}"):
            generator, pids = load(name)
            with generator:
                told = generator.open(
                    rate=rate, seconds=effort.seconds, warm_up=effort.warm_up, pids=pids
                )
            trips[name].append(_figures(told, pids))
    return {
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "closed_loop": {name: _medians(rounds) for name, rounds in most.items()},
        "one_rate": round(rate),
        "at_that_rate": {name: _medians(rounds) for name, rounds in trips.items()},
    }


def _start(rung: Rung, folder: Path, broker: MosquittoServer) -> GatewayServer:
    return GatewayServer(folder, broker.port, documents=rung.documents(), lanes=rung.lanes)


def _turns(ways: Iterable[str], rounds: int, what: str) -> list[str]:
    """Say whose turn it is, round by round, there and back."""
    print(f"lanes and own connections: {what}", file=sys.stderr, flush=True)
    there = list(ways)
    return [name for number in range(rounds) for name in (there, there[::-1])[number % 2]]


def _figures(told: RoundTrips, pids: dict[str, int]) -> dict[str, float]:
    shares = {f"{it}_cpu_us": told.cpu[it] / told.delivered * 1e6 for it in pids}
    return {
        "median_ms": told.median,
        "mean_ms": told.mean,
        "p99_ms": told.p99,
        "generator_late_p99_ms": told.late_p99,
        **shares,
    }


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(it[name] for it in rounds)


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(_median(rounds, name), 4) for name in rounds[0]}
