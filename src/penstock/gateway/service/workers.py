"""Several gateway processes that share the listeners of one host.

Rules that hold here:
- Workers are the same program with a number; the system spreads clients over them, and
  the store makes them one gateway.
- They start and end together: where one ends unasked, all end, and who started the
  gateway may start it again.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

from penstock.errors import UnavailableError
from penstock.gateway.service.process import DRAIN_SECONDS

_LOOK_SECONDS = 0.1
_STOP_SECONDS = DRAIN_SECONDS * 2 + 5


def run_workers(commands: Sequence[Sequence[str]]) -> None:
    """Run these commands until told to end, or until one of them ends."""
    told: list[int] = []

    def take_note(number: int, frame: FrameType | None) -> None:
        del frame
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take_note)
    workers = [subprocess.Popen(command) for command in commands]
    try:
        while not told and all(worker.poll() is None for worker in workers):
            time.sleep(_LOOK_SECONDS)
        failed = not told
    finally:
        _end(workers)
    if failed:
        raise UnavailableError("a worker of the gateway has ended", fix="see its log")


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        try:
            worker.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
