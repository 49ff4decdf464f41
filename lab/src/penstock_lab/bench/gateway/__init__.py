"""How fast the gateway is: the ladder from the bare broker to the most expensive filtering.

Method:
- A real Mosquitto, a real gateway process, and a load generator in a process of its own,
  all on this machine. 250 clients with three subscriptions each; every message is counted
  and a lost or duplicated one ends the measurement. See the modules beside this one and
  those of `load` for each part.
- Rounds are interleaved, figures are medians over rounds, ratios are taken within a round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer
from penstock_lab.bench.gateway import fan_in, idle, lanes, revocation, scenarios
from penstock_lab.bench.gateway.ladder import CLIENTS, Effort, climb
from penstock_lab.bench.gateway.rungs import LADDER, LADDER_QOS_1, RESERVATIONS, Rung
from penstock_lab.bench.gateway.server import DESCRIPTORS
from penstock_lab.bench.load.generator import WINDOW, raise_descriptor_limit
from penstock_lab.bench.load.plan import KINDS

GOALS = {
    "fop_cached_of_direct": 0.75,
    "fop_cached_of_no_rules": 0.90,
    "fop_cached_gateway_cpu_us": 13.0,
    "fop_cached_added_median_ms": 0.5,
}


PARTS = ("ladder", "qos_1", "lanes", "idle", "fan_in", "scenarios", "revocation")


def run(*, quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    """Measure everything, or some parts; with `quick` only to see that it runs."""
    raise_descriptor_limit(DESCRIPTORS)
    effort = Effort(1, 0.7, 0.3) if quick else Effort(3, 2.0, 0.5)
    some = Effort(1, 0.7, 0.3) if quick else Effort(2, 2.0, 0.5)
    turns = Effort(1, 0.7, 0.3) if quick else Effort(6, 2.0, 0.5)
    many = 500 if quick else 10_000
    found: dict[str, Any] = {
        "load": {
            "clients": CLIENTS,
            "subscriptions_each": len(KINDS),
            "window": WINDOW,
            "reservations": RESERVATIONS,
            "rounds": effort.rounds,
            "seconds": effort.seconds,
        }
    }
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        with MosquittoServer(folder / "broker", persistent=False) as broker:
            for part in only or PARTS:
                match part:
                    case "ladder":
                        ladder = climb(LADDER, folder, broker, effort)
                        found["rungs"] = {rung.name: _told(rung, ladder) for rung in LADDER}
                        found["goals"] = _goals(ladder)
                    case "qos_1":
                        found[part] = climb(LADDER_QOS_1, folder, broker, some)
                    case "lanes":
                        found[part] = {
                            f"qos_{qos}": lanes.compare(
                                folder / f"lanes-{qos}", broker, turns, qos=qos
                            )
                            for qos in (0, 1)
                        }
                    case "idle":
                        found[part] = idle.measure(folder / part, broker, wanted=many)
                    case "fan_in":
                        found[part] = fan_in.measure(
                            folder / part,
                            broker,
                            wanted=many,
                            seconds=2 if quick else 10,
                            rounds=1 if quick else 3,
                        )
                    case "scenarios":
                        found |= scenarios.measure(
                            folder / part,
                            broker,
                            count=100 if quick else 1_000,
                            seconds=2.0 if quick else 10.0,
                        )
                    case _:
                        found[part] = revocation.measure(
                            folder / part, broker, rounds=8 if quick else 100
                        )
    return found


def _told(rung: Rung, ladder: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"about": rung.about, **ladder[rung.name]}


def _goals(ladder: dict[str, dict[str, float]]) -> dict[str, Any]:
    cached = ladder["fop_cached"]
    found = {
        "fop_cached_of_direct": cached["of_direct"],
        "fop_cached_of_no_rules": cached["of_no_rules"],
        "fop_cached_gateway_cpu_us": cached["gateway_cpu_us"],
        "fop_cached_added_median_ms": cached["added_median_ms"],
    }
    return {
        name: {"goal": GOALS[name], "found": value, "met": _met(name, value)}
        for name, value in found.items()
    }


def _met(name: str, value: float) -> bool:
    at_least = "_of_" in name
    return value >= GOALS[name] if at_least else value <= GOALS[name]
