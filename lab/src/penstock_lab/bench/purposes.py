"""What purposes cost, as their paper measured it: throughput, round trips, subscriptions.

Method:
- A real Mosquitto, a real gateway process, and a load generator in a process of its own, as in
  `penstock bench gateway`; three subscriptions for each client, 1,000 reservations.
- `throughput`: 10 to 500 clients in a closed loop, each with four messages on their way.
- `round_trips`: 250 clients in an open loop. All rungs get the same rate, half of what the slowest
  rung with a tree store has just shown; those with a flat store, which cannot follow, half of
  their own. `round_trip_rates` says which. Mean times, as in the paper.
- `subscriptions`: 250 clients, each with one SUBSCRIBE on its way, for a purpose where there are
  rules.
- Rungs take turns within a round; figures are medians over the rounds, and overheads are taken
  within a round, by the bare broker's figure. The paper's are beside them: its broker ran the
  filter as an extension, on another machine.
- Broker, gateway and generator share this machine. Where others use more than a few hundredths
  of it (`others_cpu_share`), only CPU per message can be compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from penstock.components import MosquittoServer
from penstock_lab.bench.gateway.rungs import ALL_RUNGS, RESERVATIONS, Rung
from penstock_lab.bench.gateway.server import DESCRIPTORS, GatewayServer
from penstock_lab.bench.load.generator import WINDOW, LoadGenerator, raise_descriptor_limit
from penstock_lab.bench.load.plan import filters_of, mesh
from penstock_lab.bench.load.usage import OTHERS
from penstock_lab.bench.progress import tell
from penstock_lab.bench.tables import Table, show

CLIENTS: Final = (10, 50, 100, 250, 500)
TABLED: Final = 250
"""As many clients as the paper's tables have."""
VEHICLES: Final = 300
"""Three filters each: less than a client may hold."""
PAPER: Final = {
    "direct": ("Hive", 6254.49, 50.64),
    "no_rules": ("NoF", 5404.29, 55.20),
    "fos_tree": ("FoS", 5467.28, 54.13),
    "fop_cached": ("FoP_Cache", 4998.86, 60.59),
    "fop_tree": ("FoP", 4638.01, 68.95),
    "fop_flat": ("FoP_Flat", 3519.83, 1148.30),
    "hybrid": ("Hbr", 4690.76, 67.87),
}
"""Mode, messages a second and round trip in ms, by the rung that does the same."""
IN_TABLES: Final = ("rungs", "paper")
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often is measured, and with how many clients."""

    rounds: int
    seconds: float
    warm_up: float
    clients: tuple[int, ...]
    tabled: int


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all rungs; with `quick` only to see that it runs."""
    raise_descriptor_limit(DESCRIPTORS)
    effort = Effort(1, 0.5, 0.2, (10, 50), 50) if quick else Effort(3, 2.0, 0.5, CLIENTS, TABLED)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        with MosquittoServer(folder / "broker", persistent=False) as broker:
            rounds = [
                _measure_round(ALL_RUNGS, folder / str(number), broker, effort, number)
                for number in range(effort.rounds)
            ]
    return {
        "load": {
            "clients": list(effort.clients),
            "tabled_clients": effort.tabled,
            "window": WINDOW,
            "reservations": RESERVATIONS,
            "rounds": effort.rounds,
            "seconds": effort.seconds,
        },
        "rungs": {
            rung.name: {"about": rung.about, **take_medians([it[rung.name] for it in rounds])}
            for rung in ALL_RUNGS
        },
        "paper": {
            name: {"mode": mode, "messages_per_second": rate, "round_trip_ms": trip}
            for name, (mode, rate, trip) in PAPER.items()
        },
    }


def _measure_round(
    rungs: Sequence[Rung], folder: Path, broker: MosquittoServer, effort: Effort, number: int
) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    said = f"round {number + 1} of {effort.rounds}"
    for rung in rungs:
        tell(f"{said}: throughput and subscriptions, {rung.name}")
        with _Stage(rung, folder / rung.name, broker) as stage:
            found[rung.name] = stage.measure_throughput(effort) | stage.measure_subscriptions(
                effort
            )
    rates = choose_rates({name: it[f"rate_{effort.tabled}"] for name, it in found.items()})
    for rung in rungs:
        tell(f"{said}: round trips, {rung.name}")
        with _Stage(rung, folder / f"{rung.name}-trips", broker) as stage:
            found[rung.name] |= stage.measure_trips(effort, rates[rung.name])
    add_overheads(found, [f"rate_{it}" for it in effort.clients])
    return found


class _Stage:
    """A rung as it runs: the broker, and before it a gateway, if the rung has one."""

    def __init__(self, rung: Rung, folder: Path, broker: MosquittoServer) -> None:
        self._rung = rung
        self._folder = folder
        self._broker = broker
        self._stack = ExitStack()
        self._port = broker.port
        self._pids = {"broker": broker.pid}

    def __enter__(self) -> Self:
        if self._rung.gateway:
            gateway = GatewayServer(
                self._folder, self._broker.port, documents=self._rung.documents()
            )
            self._stack.enter_context(gateway)
            self._port, self._pids["gateway"] = gateway.port, gateway.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure_throughput(self, effort: Effort) -> Figures:
        found: Figures = {}
        for clients in effort.clients:
            with LoadGenerator(mesh(clients, self._rung.purpose), self._port) as load:
                most = load.closed(seconds=effort.seconds, warm_up=effort.warm_up, pids=self._pids)
            found[f"rate_{clients}"] = most.rate
            if clients == effort.tabled:
                found |= {f"{name}_cpu_us": most.cpu_micros(name) for name in self._pids}
                cores = os.cpu_count() or 1
                found["others_cpu_share"] = max(0.0, most.cpu[OTHERS] / most.seconds / cores)
        return found

    def measure_subscriptions(self, effort: Effort) -> Figures:
        purpose = self._rung.purpose
        filters = [text for number in range(VEHICLES) for text in filters_of(number, purpose)]
        with LoadGenerator(mesh(effort.tabled, purpose), self._port) as load:
            most = load.subscribe(
                filters=filters, seconds=effort.seconds, warm_up=effort.warm_up, pids=self._pids
            )
        return {"subscriptions_per_second": most.rate}

    def measure_trips(self, effort: Effort, rate: float) -> Figures:
        with LoadGenerator(mesh(effort.tabled, self._rung.purpose), self._port) as load:
            trips = load.open(rate=rate, seconds=effort.seconds, warm_up=effort.warm_up)
        return {
            "round_trip_rate": rate,
            "round_trip_ms": trips.mean,
            "round_trip_median_ms": trips.median,
            "round_trip_p99_ms": trips.p99,
        }


def choose_rates(throughput: Mapping[str, float]) -> dict[str, float]:
    """Return the rate at which the round trips of each rung are measured."""
    common = min(rate for name, rate in throughput.items() if not name.endswith("_flat")) / 2
    return {name: min(common, rate / 2) for name, rate in throughput.items()}


def add_overheads(found: Mapping[str, Figures], rates: Iterable[str]) -> None:
    """Add by how many percent each rung is below, or takes longer than, the bare broker."""
    named = [*rates, "subscriptions_per_second"]
    direct = dict(found["direct"])
    for figures in found.values():
        for name in named:
            figures[f"{name}_overhead"] = (1 - figures[name] / direct[name]) * 100
        figures["round_trip_overhead"] = (
            figures["round_trip_ms"] / direct["round_trip_ms"] - 1
        ) * 100


def take_medians(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the rounds."""
    return {name: round(statistics.median(it[name] for it in rounds), 3) for name in rounds[0]}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return all rungs beside the paper's tables, and by clients."""
    load, rungs = figures["load"], figures["rungs"]
    tabled = load["tabled_clients"]
    _, hive_rate, hive_trip = PAPER["direct"]
    rates, trips, more = [], [], []
    for name, it in rungs.items():
        mode, rate, trip = PAPER.get(name, ("", None, None))
        rates.append(
            (
                name,
                show(it[f"rate_{tabled}"], 0),
                show(it[f"rate_{tabled}_overhead"], 1, " %"),
                show(it.get("gateway_cpu_us"), 1),
                mode,
                show(rate, 0),
                show(None if rate is None else (1 - rate / hive_rate) * 100, 1, " %"),
            )
        )
        trips.append(
            (
                name,
                show(it["round_trip_ms"], 3),
                show(it["round_trip_overhead"], 1, " %"),
                show(it["round_trip_rate"], 0),
                mode,
                show(trip, 1),
                show(None if trip is None else (trip / hive_trip - 1) * 100, 1, " %"),
            )
        )
        more.append(
            (
                name,
                *(show(it[f"rate_{count}"], 0) for count in load["clients"]),
                show(it["subscriptions_per_second"], 0),
                show(it["subscriptions_per_second_overhead"], 1, " %"),
            )
        )
    of_clients = f"{tabled} clients"
    return [
        Table(
            f"{of_clients}: throughput, beside table I of the paper",
            ("rung", "msg/s", "overhead", "gateway µs/msg", "paper", "msg/s", "overhead"),
            rates,
        ),
        Table(
            f"{of_clients}: mean round trip, beside table II of the paper",
            ("rung", "ms", "overhead", "at msg/s", "paper", "ms", "overhead"),
            trips,
        ),
        Table(
            "messages a second by clients; subscriptions a second",
            ("rung", *(str(count) for count in load["clients"]), "subs/s", "overhead"),
            more,
        ),
    ]
