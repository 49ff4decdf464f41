"""From a publisher to its readers, as the case study was measured: three gateways, two homes.

Method:
- One Mosquitto and three gateway processes on one store for each home; each gateway has a third
  of each group. The first one detects, the others submit what may be an event to it. Target: 300
  patients, 60 staff, 60 relatives, 6 specialists; extreme: five times as many. Both at 60
  publications a second in all, one in fifty a symptom; staff and specialists subscribe to all
  physiological data, and few of them may have a message.
- `transmission` is from the moment that a publication was due to its arrival at a reader who may
  have it (c2c). A client at the broker itself tells when it was there: so far c2b, from there b2c.
  `sent_late` is how late the clients themselves were; it is in c2b.
- `overhead` is what the gateways take to decide: on a publication until it may go on, the answer
  of the gateway that detects included (c2b), and on a delivery (b2c).
- `packets_per_second` is what the gateways decide on at this rate, not what they could.
- Both homes are up all the time and take turns, some seconds each, in rounds.
- `cpu` is what each process used of a core meanwhile. `profile` is where the CPU time of each
  gateway went, in a round of its own after the others, since looking costs a little.
- `paper` has the figures of the case study, table 8. Clients, gateways and brokers share this
  machine; the paper's did not say.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from penstock.components import MosquittoServer
from penstock_lab.bench.emergencies.crowd import Crowd, population
from penstock_lab.bench.emergencies.goals import at_most
from penstock_lab.bench.emergencies.phases import (
    PHASES,
    Arrival,
    count_packets,
    measure_overhead,
    split_phases,
    spread,
)
from penstock_lab.bench.emergencies.timed_process import TimedGateway, store_definitions
from penstock_lab.bench.load.generator import raise_descriptor_limit
from penstock_lab.bench.load.usage import cpu_seconds
from penstock_lab.bench.progress import tell
from penstock_lab.bench.tables import Table, show

SETUPS: Final = {"target": 1, "extreme": 5}
GATEWAYS: Final = 3
RATE: Final = 60
ROUNDS: Final = 3
GOAL_MS: Final = 40.0
PAPER: Final[dict[str, dict[str, Any]]] = {
    "target": {
        "overhead_ms": {"c2b": 25.45, "b2c": 5.14, "c2c": 30.59},
        "transmission_ms": 43.02,
        "packets_per_second": {"c2b": 44.16, "b2c": 51.83, "c2c": 95.99},
    },
    "extreme": {
        "overhead_ms": {"c2b": 62.80, "b2c": 5.91, "c2c": 68.71},
        "transmission_ms": 71.3,
        "packets_per_second": {"c2b": 41.63, "b2c": 46.44, "c2c": 88.07},
    },
}


class Home:
    """One set-up: its broker, its gateways, its people, and what was found out."""

    def __init__(self, name: str, broker: MosquittoServer, gateways: list[TimedGateway]) -> None:
        self.name = name
        self._gateways = gateways
        self._crowd = Crowd([it.port for it in gateways], SETUPS[name], broker.port)
        self._pids = {f"gateway_{at}": it.pid for at, it in enumerate(gateways, 1)}
        self._pids["broker"] = broker.pid
        self._used: dict[str, float] = dict.fromkeys(("clients", *self._pids), 0.0)
        self._played = 0.0

    async def begin(self) -> None:
        """Connect everybody; let each sensor publish, first with nobody to read it."""
        await self._crowd.connect_publishers()
        await self._crowd.warm_up()
        await self._crowd.observe()
        await self._crowd.connect_readers()

    async def forget(self) -> None:
        """Begin to note times anew."""
        self._crowd.forget()
        self._played = 0.0
        self._used = dict.fromkeys(self._used, 0.0)
        for gateway in self._gateways:
            await gateway.begin()

    async def play(self, seconds: float) -> None:
        """Publish for a while, and wait for what is on its way."""
        before, began = self._read_usage(), time.perf_counter()
        await self._crowd.play(RATE, seconds)
        self._played += time.perf_counter() - began
        for name, used in self._read_usage().items():
            self._used[name] += used - before[name]
        await self._crowd.drain()

    def _read_usage(self) -> dict[str, float]:
        """Return the CPU seconds of each process; the clients are in this one."""
        used = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        return {"clients": time.process_time(), **used}

    async def finish(self, seconds: float) -> dict[str, Any]:
        """Gather what was noted; then look where CPU time goes."""
        reports = [await it.report() for it in self._gateways]
        crowd = self._crowd
        # What the gateways noted includes the pauses between turns.
        for report in reports:
            report["seconds"] = self._played
        readers = [it for it in crowd.clients.values() if it is not crowd.observer]
        arrivals = [Arrival(it.place, *each) for it in readers for each in it.arrivals]
        seen = dict(crowd.observer.arrivals) if crowd.observer is not None else {}
        places = split_phases(crowd.sent, seen, arrivals, GATEWAYS)
        found = {
            "published": len(crowd.sent),
            "refused": crowd.refused,
            "mean": _describe(reports, places),
            "gateways": {
                f"gateway_{at}": _describe([report], [place])
                for at, (report, place) in enumerate(zip(reports, places, strict=True), 1)
            },
            "sent_late": spread(crowd.late),
            "acknowledged": spread(it for one in readers for it in one.acknowledged),
            "cpu": {name: round(it / self._played, 3) for name, it in self._used.items()},
        }
        decided = sum(it["delivery"]["count"] for it in reports)
        spent = sum(it for name, it in self._used.items() if name.startswith("gateway_"))
        found["gateway_cpu_us_per_delivery"] = round(spent / decided * 1e6, 1) if decided else 0.0
        found["profile"] = await self._look(seconds)
        return found

    async def close(self) -> None:
        """End all connections."""
        await self._crowd.close()

    async def _look(self, seconds: float) -> dict[str, Any]:
        for gateway in self._gateways:
            gateway.toggle_profile()
        await self.play(seconds)
        for gateway in self._gateways:
            gateway.toggle_profile()
        reports = [await it.report() for it in self._gateways]
        return {
            f"gateway_{at}": report.get("profile", {"samples": 0})
            for at, report in enumerate(reports, 1)
        }


def _describe(
    reports: list[dict[str, Any]], places: Iterable[dict[str, list[float]]]
) -> dict[str, Any]:
    joined = list(places)
    return {
        "overhead_ms": measure_overhead(reports),
        "transmission": {
            phase: spread(it for place in joined for it in place[phase]) for phase in PHASES
        },
        "packets_per_second": count_packets(reports),
    }


async def _measure(homes: list[Home], seconds: float) -> dict[str, Any]:
    try:
        for home in homes:
            tell(f"{home.name}: everybody connects")
            await home.begin()
        for home in homes:
            await home.play(seconds / ROUNDS)
            await home.forget()
        for number in range(ROUNDS):
            for home in homes:
                tell(f"round {number + 1} of {ROUNDS}: {home.name}")
                await home.play(seconds / ROUNDS)
        return {home.name: await home.finish(seconds / ROUNDS) for home in homes}
    finally:
        for home in homes:
            await home.close()


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure both set-ups."""
    raise_descriptor_limit(65_536)
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        homes = []
        for name, factor in SETUPS.items():
            folder = Path(made) / name
            broker = stack.enter_context(MosquittoServer(folder / "broker"))
            store_definitions(folder, population(factor))
            gateways = [
                stack.enter_context(TimedGateway(folder / f"gateway-{at}", broker.port, folder))
                for at in range(GATEWAYS)
            ]
            homes.append(Home(name, broker, gateways))
        found = asyncio.run(_measure(homes, 6.0 if quick else 30.0))
    goals = {
        f"{name}: mean transmission in ms": at_most(
            GOAL_MS, it["mean"]["transmission"]["c2c"].get("mean_ms", float("inf"))
        )
        for name, it in found.items()
    }
    return {"goals": goals, **found, "paper": PAPER}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return a table as the paper's, and one of where the time goes."""
    columns = ("ms, mean", *(f"gateway {at + 1}" for at in range(GATEWAYS)), "all", "paper")
    found = []
    for name in SETUPS:
        home, paper = figures[name], PAPER[name]
        places = [*home["gateways"].values(), home["mean"]]
        rows = [
            (
                f"overhead {phase}",
                *(show(it["overhead_ms"][phase], 3) for it in places),
                show(paper["overhead_ms"][phase]),
            )
            for phase in PHASES
        ]
        rows += [
            (
                f"transmission {phase}",
                *(show(it["transmission"][phase].get("mean_ms")) for it in places),
                show(paper["transmission_ms"]) if phase == "c2c" else "",
            )
            for phase in PHASES
        ]
        rows += [
            (
                f"packets/s {phase}",
                *(show(it["packets_per_second"][phase], 1) for it in places),
                show(paper["packets_per_second"][phase]),
            )
            for phase in PHASES
        ]
        found.append(Table(f"{name}: {home['refused']} refused", columns, rows))
        used = [(process, show(share * 100, 1, " %")) for process, share in home["cpu"].items()]
        used.append(("per delivery, µs", show(home["gateway_cpu_us_per_delivery"], 1)))
        found.append(Table(f"{name}: CPU, of a core", ("process", "share"), used))
        rooms = sorted({room for it in home["profile"].values() for room in it.get("rooms", {})})
        shares = [
            (room, *(show(it.get("rooms", {}).get(room)) for it in home["profile"].values()))
            for room in rooms
        ]
        found.append(
            Table(f"{name}: where gateways' CPU time goes", ("share", *columns[1:-2]), shares)
        )
    return found
