"""What processes use: CPU seconds and memory, of a process with all its children."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process and its children have used so far."""
    total = 0.0
    for process in family(pid):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def memory_bytes(pid: int) -> int:
    """Return the memory that belongs to a process and its children alone."""
    return sum(int(process.memory_full_info().uss) for process in family(pid))


def machine_seconds() -> float:
    """Return the CPU seconds that all processes of the machine have used so far."""
    times = psutil.cpu_times()
    # Interrupts are left out: the traffic that is measured causes most of them itself.
    return float(times.user + times.system + getattr(times, "nice", 0.0))


OTHERS = "others"
"""The name under which a meter counts what all other processes use."""


class UsageMeter:
    """The CPU seconds of named processes, of this one and of all others, between two moments."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = {"generator": os.getpid(), **pids}
        self._start: dict[str, float] = {}

    def start(self) -> None:
        """Begin to measure."""
        self._start = self._read()

    def stop(self) -> dict[str, float]:
        """Return the CPU seconds per name since `start`."""
        end = self._read()
        return {name: end[name] - self._start[name] for name in end}

    def _read(self) -> dict[str, float]:
        read = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        return read | {OTHERS: machine_seconds() - sum(read.values())}
