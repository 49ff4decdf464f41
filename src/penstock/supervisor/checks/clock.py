"""The clock: policies, audit entries and deadlines depend on it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from penstock.config import Config
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part

AHEAD = 300.0
FILES_LIMIT = 1000
TIME_ERROR = 5
# Larger than the structure is on any machine; all zero means: ask, and change nothing.
TIMEX_SIZE = 512


def look(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Compare the clock with this program's own age and our own files, and ask the kernel."""
    del parts
    now = time.time()
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    newest = max(_written(Path(__file__).parent), _written(config.data))
    if newest > now + AHEAD:
        ahead = (newest - now) / 60
        detail = f"{shown}, but files here were written {ahead:.0f} minutes later"
        yield Finding("clock", "time", Verdict.WRONG, detail, "set the clock (NTP)")
    elif not _is_synchronised():
        detail = f"{shown}, and the kernel does not know of any source of time"
        fix = "run a time service, such as chrony or systemd-timesyncd"
        yield Finding("clock", "time", Verdict.WARNING, detail, fix)
    else:
        yield Finding("clock", "time", Verdict.OK, shown)


def _written(folder: Path) -> float:
    """Return when the newest of the folder's own files was written; 0 where there is none."""
    newest = 0.0
    if folder.is_dir():
        for _, path in zip(range(FILES_LIMIT), folder.iterdir(), strict=False):
            newest = max(newest, path.lstat().st_mtime)
    return newest


def _is_synchronised() -> bool:
    """Ask the kernel whether something keeps its clock right."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except AttributeError:
        return True  # not Linux; there is no such question
    return bool(ask(ctypes.create_string_buffer(TIMEX_SIZE)) != TIME_ERROR)
