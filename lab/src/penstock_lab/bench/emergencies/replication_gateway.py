"""A gateway that notes how long replication of detection takes: a program of its own.

    python -m penstock_lab.bench.emergencies.replication_gateway CONFIGURATION REPORT

Rules that hold here:
- It is the gateway that an operator runs, with three stopwatches: from asking another gateway
  to its answer, from a transition until all other gateways have said that they know, and
  from a doubt about what time has changed to its end.
- At SIGUSR1 it forgets what it noted; at SIGUSR2 it writes the report, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from penstock.config import load
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.service.process import run_until_told


def main(configuration: Path, report: Path) -> None:
    """Run the gateway until it is told to end."""
    noted: dict[str, list[float]] = {"asked": [], "known": [], "doubt": []}
    clock = time.perf_counter
    submit, replicate, check_deadline = (
        ReplicationFollower.submit,
        ReplicationLeader.replicate,
        ReplicationFollower.check_deadline,
    )

    def submit_timed(self: ReplicationFollower, request: Any) -> Any:
        began = clock()
        answer = submit(self, request)
        answer.add_done_callback(lambda _: noted["asked"].append(clock() - began))
        return answer

    def replicate_timed(self: ReplicationLeader, *given: Any, **named: Any) -> None:
        began = clock()
        replicate(self, *given, **named)
        rows = given[0]
        if rows:
            self.when_replicated(lambda _: noted["known"].append(clock() - began))

    def keep_current_timed(self: ReplicationFollower) -> None:
        certain = not self.awaiting_leader
        check_deadline(self)
        if certain and self.awaiting_leader:
            began = clock()
            task = asyncio.ensure_future(self.wait_current())
            task.add_done_callback(lambda _: noted["doubt"].append(clock() - began))

    ReplicationFollower.submit = submit_timed  # type: ignore[method-assign]
    ReplicationFollower.check_deadline = keep_current_timed  # type: ignore[method-assign]
    ReplicationLeader.replicate = replicate_timed  # type: ignore[method-assign]

    def forget() -> None:
        for times in noted.values():
            times.clear()

    def write() -> None:
        made = report.with_suffix(".part")
        made.write_text(json.dumps(noted))
        made.rename(report)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, forget)
        loop.add_signal_handler(signal.SIGUSR2, write)
        await run_until_told(load(configuration, {}))

    uvloop.run(serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
