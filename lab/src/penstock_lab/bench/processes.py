"""What this process and those below it use: CPU time, and memory at its peak."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil


def cpu_seconds() -> float:
    """Return what this process and all below it have used, ended children included."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def peak_mib(process: psutil.Process | None = None) -> float:
    """Return the most memory that a process held at a time, as far as the system tells."""
    process = process or psutil.Process()
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) / 1024
    return float(process.memory_info().rss) / 2**20


def find_java() -> psutil.Process:
    """Return the Java process that Spark runs in."""
    for process in psutil.Process().children(recursive=True):
        if process.name() == "java":
            return process
    raise RuntimeError("Spark runs in no process of ours")
