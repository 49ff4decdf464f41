"""Open scenarios as brokers are compared by: point to point, and fan-out.

Both are run against the bare broker and through a gateway that filters on publish, one
right after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer
from penstock_lab.bench.gateway.rungs import FOP_CACHED
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.generator import LoadGenerator
from penstock_lab.bench.load.open import RoundTrips
from penstock_lab.bench.load.plan import LoadPlan, fan_out, pairs


def measure(folder: Path, broker: MosquittoServer, *, count: int, seconds: float) -> dict[str, Any]:
    """Measure `count` pairs with one message per second each, and one to `count`."""
    with GatewayServer(folder, broker.port, documents=FOP_CACHED.documents(count + 1)) as gateway:
        purpose = FOP_CACHED.purpose
        return {
            "p2p": {
                "pairs": count,
                "messages_per_second": count,
                "qos": 1,
                "direct": _run(pairs(count), broker.port, {}, count, seconds, qos=1),
                "fop_cached": _run(
                    pairs(count, purpose),
                    gateway.port,
                    {"gateway": gateway.pid},
                    count,
                    seconds,
                    qos=1,
                ),
            },
            "fan_out": {
                "receivers": count,
                "messages_per_second": 5,
                "qos": 0,
                "direct": _run(fan_out(count), broker.port, {}, 5, seconds, qos=0),
                "fop_cached": _run(
                    fan_out(count, purpose),
                    gateway.port,
                    {"gateway": gateway.pid},
                    5,
                    seconds,
                    qos=0,
                ),
            },
        }


def _run(
    plan: LoadPlan, port: int, pids: dict[str, int], rate: float, seconds: float, *, qos: int
) -> dict[str, float]:
    with LoadGenerator(plan, port, qos=qos) as load:
        trips = load.open(rate=rate, seconds=seconds, warm_up=1.0, pids=pids)
    return _figures(trips)


def _figures(trips: RoundTrips) -> dict[str, float]:
    found = {
        "delivered": trips.delivered,
        "median_ms": round(trips.median, 3),
        "p99_ms": round(trips.p99, 3),
    }
    if "gateway" in trips.cpu:
        found["gateway_cpu_us"] = round(trips.cpu["gateway"] / trips.delivered * 1e6, 2)
    return found
