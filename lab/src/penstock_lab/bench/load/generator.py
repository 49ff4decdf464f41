"""A load on a broker or a gateway, made by a process of its own.

    with LoadGenerator(mesh(250), port) as load:
        found = load.closed(seconds=2, pids={"broker": broker.pid})
        print(found.rate, found.cpu_micros("broker"))

Rules that hold here:
- The generator is a process of its own, so that neither its interpreter nor its memory
  has a part in what is measured.
- Whatever makes figures meaningless (a refused subscription, a lost or a duplicated
  message) is an error, not a figure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.components import processes
from penstock_lab.bench.load.closed import Throughput
from penstock_lab.bench.load.fleet import LoadError
from penstock_lab.bench.load.open import RoundTrips
from penstock_lab.bench.load.plan import LoadPlan

_STOP_SECONDS = 10.0
WINDOW = 4
"""How many messages each client of a closed loop has on their way."""


def raise_descriptor_limit(wanted: int) -> int:
    """Allow this process and its children `wanted` open files; return what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (OSError, ValueError):
        # Only a privileged process may pass the hard limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class LoadGenerator(processes.Server):
    """The generator's process, connected as long as the `with` block lasts."""

    def __init__(self, plan: LoadPlan, port: int, *, qos: int = 0, payload: int = 64) -> None:
        self.plan = plan
        self.port = port
        self._setup = {"plan": plan.as_json(), "port": port, "qos": qos, "payload": payload}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until every client is connected and subscribed."""
        raise_descriptor_limit(len(self.plan.parties) + 100)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock_lab.bench.load.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(self._setup)

    def stop(self) -> None:
        """End the process; its clients disconnect in order."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
            process.wait(_STOP_SECONDS)

    def closed(
        self,
        *,
        seconds: float,
        warm_up: float = 0.5,
        window: int = WINDOW,
        pids: Mapping[str, int] | None = None,
    ) -> Throughput:
        """Find the throughput: each client keeps `window` messages on their way."""
        order = {"loop": "closed", "window": window}
        return Throughput(**self._measure(order, seconds, warm_up, pids))

    def open(
        self,
        *,
        rate: float,
        seconds: float,
        warm_up: float = 0.5,
        pids: Mapping[str, int] | None = None,
    ) -> RoundTrips:
        """Find the round trip when `rate` messages per second are sent."""
        order = {"loop": "open", "rate": rate}
        return RoundTrips(**self._measure(order, seconds, warm_up, pids))

    def subscribe(
        self,
        *,
        filters: Sequence[str],
        seconds: float,
        warm_up: float = 0.5,
        pids: Mapping[str, int] | None = None,
    ) -> Throughput:
        """Find how many subscriptions are answered: each client has one on its way."""
        order = {"loop": "subscribe", "filters": list(filters)}
        return Throughput(**self._measure(order, seconds, warm_up, pids))

    def _measure(
        self, order: dict[str, Any], seconds: float, warm_up: float, pids: Mapping[str, int] | None
    ) -> dict[str, Any]:
        times = {"seconds": seconds, "warm_up": warm_up, "pids": dict(pids or {})}
        return self._ask({**order, **times})

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise LoadError("the load generator is not running", fix="call start() first")
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise LoadError("the load generator ended", fix="see what it wrote above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise LoadError(f"the load failed: {reply['error']}")
        return reply
