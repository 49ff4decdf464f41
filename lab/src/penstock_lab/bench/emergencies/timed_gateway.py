"""A gateway that notes how long each of its decisions takes: a program of its own.

    python -m penstock_lab.bench.emergencies.timed_gateway CONFIGURATION REPORT

Rules that hold here:
- It is the gateway that an operator runs, with three stopwatches: around what happens to a
  publication (prepare, decide, commit, transition), around what is decided on a delivery, and
  from the moment that a publication is looked at until it may go on, other gateways included.
- At SIGUSR1 it forgets what it noted; at SIGUSR2 it writes the report; at SIGRTMIN it begins or
  ends to look where its CPU time goes; at SIGTERM it ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from penstock.config import load
from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.service.process import run_until_told
from penstock_lab.bench.cpu_profile import CpuProfile


class Stopwatch:
    """The times of one kind of decision, in ns: by the clock, and of the processor alone."""

    def __init__(self) -> None:
        self.times = array("q")
        self.worked = array("q")

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the watch around it."""
        times, worked = self.times, self.worked
        clock, work = time.perf_counter_ns, time.thread_time_ns

        def timed(*given: Any, **named: Any) -> Any:
            started, begun = clock(), work()
            try:
                return function(*given, **named)
            finally:
                worked.append(work() - begun)
                times.append(clock() - started)

        return timed

    def until_settled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the watch running until what it returns is there."""
        clock = time.perf_counter_ns

        async def settle(pending: Awaitable[Any], started: int) -> Any:
            try:
                return await pending
            finally:
                self.times.append(clock() - started)

        def timed(*given: Any, **named: Any) -> Any:
            started = clock()
            found = function(*given, **named)
            if isinstance(found, Awaitable):
                return settle(found, started)
            self.times.append(clock() - started)
            return found

        return timed

    def forget(self) -> None:
        """Begin anew."""
        del self.times[:], self.worked[:]

    def report(self) -> dict[str, float]:
        """Return what was noted, in µs."""
        if not self.times:
            return {"count": 0}
        found: dict[str, float] = {"count": len(self.times)}
        for label, noted in (("", self.times), ("cpu_", self.worked)):
            if not noted:
                continue
            ordered = sorted(noted)
            found |= {
                f"{label}mean_us": round(sum(ordered) / len(ordered) / 1e3, 1),
                f"{label}median_us": round(ordered[len(ordered) // 2] / 1e3, 1),
                f"{label}p99_us": round(ordered[int(0.99 * (len(ordered) - 1))] / 1e3, 1),
            }
        return found


def main(configuration: Path, report: Path) -> None:
    """Run the gateway until it is told to end; write reports when it is asked."""
    publish, deliver, settle = Stopwatch(), Stopwatch(), Stopwatch()
    profile = CpuProfile()
    PublicationCheck.publish = settle.until_settled(  # type: ignore[method-assign]
        publish.around(PublicationCheck.publish)
    )
    DeliveryCheck.decide = deliver.around(DeliveryCheck.decide)  # type: ignore[method-assign]
    started = time.perf_counter()
    cpu = time.process_time()

    async def serve() -> None:
        nonlocal started, cpu

        def forget() -> None:
            nonlocal started, cpu
            for watch in (publish, deliver, settle):
                watch.forget()
            started, cpu = time.perf_counter(), time.process_time()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, forget)
        loop.add_signal_handler(signal.SIGUSR2, write)
        loop.add_signal_handler(signal.SIGRTMIN, profile.toggle)
        await run_until_told(load(configuration, {}))

    def write() -> None:
        seconds = time.perf_counter() - started
        found = {
            "publish": publish.report(),
            "delivery": deliver.report(),
            "settled": settle.report(),
            "seconds": round(seconds, 2),
            "cpu_share": round((time.process_time() - cpu) / seconds, 3),
        }
        if profile.counts:
            found["profile"] = profile.report()
        made = report.with_suffix(".part")
        made.write_text(json.dumps(found))
        made.rename(report)

    uvloop.run(serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
