"""The generator's own process: reads orders as lines of JSON, answers in lines of JSON.

Started by `penstock_lab.bench.load`; not meant to be called by hand.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from typing import Any

from penstock.errors import PenstockError
from penstock_lab.bench.load.closed import ClosedLoop
from penstock_lab.bench.load.fleet import Fleet
from penstock_lab.bench.load.open import OpenLoop
from penstock_lab.bench.load.plan import LoadPlan
from penstock_lab.bench.load.subscribing import SubscribeLoop
from penstock_lab.bench.load.usage import UsageMeter


def obey(fleet: Fleet, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order."""
    meter = UsageMeter(order["pids"])
    times = {"seconds": order["seconds"], "warm_up": order["warm_up"], "meter": meter}
    if order["loop"] == "closed":
        return dataclasses.asdict(ClosedLoop(fleet, order["window"]).run(**times))
    if order["loop"] == "subscribe":
        return dataclasses.asdict(SubscribeLoop(fleet, order["filters"]).run(**times))
    return dataclasses.asdict(OpenLoop(fleet).run(rate=order["rate"], **times))


def answer(reply: dict[str, Any]) -> None:
    """Write one line to who ordered."""
    print(json.dumps(reply), flush=True)


def main() -> None:
    """Connect the fleet, then carry out orders until the input ends."""
    # No garbage collector pauses within a measurement; the process is short-lived.
    gc.disable()
    try:
        setup = json.loads(sys.stdin.readline())
        fleet = Fleet(
            LoadPlan.from_json(setup["plan"]),
            setup["port"],
            qos=setup["qos"],
            payload=setup["payload"],
        )
        answer({"ready": len(fleet.clients), "size": fleet.size})
        for line in sys.stdin:
            answer(obey(fleet, json.loads(line)))
        fleet.close()
    except (PenstockError, OSError) as error:
        answer({"error": str(error)})
        sys.exit(3)


if __name__ == "__main__":
    main()
