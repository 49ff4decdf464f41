"""What policies and emergencies cost in the gateway: the set-ups of the case study.

Method:
- A real Mosquitto, a real gateway process with the nursing home's definitions, and clients
  in this process, all on this machine. Target: 300 patients, 60 staff, 60 relatives, 6
  specialists, 300 wearable sensors, 3 room monitors. Extreme: five times as many. Staff and
  specialists subscribe to all physiological data, so that the gateway decides on each
  message once for each of them; who may not read it gets nothing.
- Publications that are refused because the machine is too busy to detect are counted
  (`refused`): figures with more than none of them are worth nothing.
- Each sensor publishes each vital sign once before readers connect (`first`: the gateway
  finds out then what rules a publisher has). Then both homes are measured in turns, some
  seconds each, so that both see the same machine.
- Both run at 60 publications a second, as in the case study: temperatures, respiratory
  rates, saturations (one in fifty a symptom), rooms. `publish` (detection included) and
  `delivery` are the times that the gateway's decisions take (see `timed_gateway`), by the
  clock, and of the processor alone (`cpu_…`). `transmission` is from the moment that a
  publication was due to its arrival at a reader, `acknowledged` to its PUBACK (QoS 1, after
  the step is durable).
- `growth` is the extreme's time by the target's. Goals are judged by the clock, on the
  hundredth part of decisions that takes longest (p99); other work on the machine counts.
- `flood`: the target's clients, publications without a pause; packets are all that the
  gateway decided on, in and out. `flood_without_readers` is before readers connect.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from penstock.components import MosquittoServer
from penstock_lab.bench.emergencies.crowd import Crowd, population
from penstock_lab.bench.emergencies.goals import at_least, at_most
from penstock_lab.bench.emergencies.phases import spread
from penstock_lab.bench.emergencies.timed_process import TimedGateway, store_definitions
from penstock_lab.bench.load.generator import raise_descriptor_limit

SETUPS: Final = {"target": 1, "extreme": 5}
RATE: Final = 60
ROUNDS: Final = 3
PUBLISH_US: Final = 1000
DELIVERY_US: Final = 200
PACKETS: Final = 5000
GROWTH: Final = 1.3


class Home:
    """One set-up: its gateway, its people, and what was found out."""

    def __init__(self, gateway: TimedGateway, factor: int) -> None:
        self.gateway = gateway
        self.crowd = Crowd([gateway.port], factor)
        self.found: dict[str, Any] = {}

    async def begin(self, flood: float) -> None:
        """Let sensors publish, first with nobody to read it."""
        await self.crowd.connect_publishers()
        await self.gateway.begin()
        await self.crowd.warm_up()
        self.found["first"] = (await self.gateway.report())["publish"]
        if flood:
            self.found["flood_without_readers"] = await self._flood(flood)
        await self.crowd.connect_readers()

    async def play(self, seconds: float) -> None:
        """Publish for a while."""
        await self.crowd.play(RATE, seconds)
        await self.crowd.drain()

    async def forget(self) -> None:
        """Begin to note times anew."""
        self.crowd.forget()
        await self.gateway.begin()

    async def finish(self, flood: float) -> None:
        """Gather what was noted."""
        report = await self.gateway.report()
        self.found |= {part: report[part] for part in ("publish", "delivery")}
        clients = self.crowd.clients.values()
        self.found["transmission"] = spread([it for one in clients for it in one.trips])
        self.found["acknowledged"] = spread([it for one in clients for it in one.acknowledged])
        self.found["refused"] = self.crowd.refused
        if flood:
            self.found["flood"] = await self._flood(flood)

    async def _flood(self, seconds: float) -> dict[str, Any]:
        refused = self.crowd.refused
        await self.gateway.begin()
        await self.crowd.flood(seconds)
        report = await self.gateway.report()
        await self.crowd.drain()
        counts = [report[part]["count"] for part in ("publish", "delivery")]
        return {
            "publications_per_second": round(counts[0] / report["seconds"]),
            "packets_per_second": round(sum(counts) / report["seconds"]),
            "refused": self.crowd.refused - refused,
            **report,
        }


async def _measure(gateways: dict[str, TimedGateway], seconds: float) -> dict[str, Any]:
    homes = {name: Home(it, SETUPS[name]) for name, it in gateways.items()}
    floods = {name: seconds / 3 if name == "target" else 0.0 for name in homes}
    try:
        for name, home in homes.items():
            await home.begin(floods[name])
        for home in homes.values():
            await home.play(seconds / ROUNDS)
            await home.forget()
        for _ in range(ROUNDS):
            for home in homes.values():
                await home.play(seconds / ROUNDS)
        for name, home in homes.items():
            await home.finish(floods[name])
    finally:
        for home in homes.values():
            await home.crowd.close()
    return {name: home.found for name, home in homes.items()}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure both set-ups."""
    raise_descriptor_limit(65_536)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        gateways = {}
        for name, factor in SETUPS.items():
            place = Path(folder) / name
            broker = stack.enter_context(MosquittoServer(place / "broker"))
            store_definitions(place, population(factor))
            gateway = TimedGateway(place / "gateway", broker.port, place)
            gateways[name] = stack.enter_context(gateway)
        found = asyncio.run(_measure(gateways, 6.0 if quick else 24.0))
    growth = {
        part: {
            figure: round(found["extreme"][part][figure] / found["target"][part][figure], 2)
            for figure in ("p99_us", "mean_us", "median_us", "cpu_mean_us", "cpu_p99_us")
        }
        for part in ("publish", "delivery")
    }
    goals = {
        f"{name} {part} p99 in us": at_most(limit, found[name][part]["p99_us"])
        for name in SETUPS
        for part, limit in (("publish", PUBLISH_US), ("delivery", DELIVERY_US))
    }
    goals["packets per second"] = at_least(PACKETS, found["target"]["flood"]["packets_per_second"])
    for part in growth:
        goals[f"growth of {part} p99"] = at_most(GROWTH, growth[part]["p99_us"])
    return {"goals": goals, "growth": growth, **found}
