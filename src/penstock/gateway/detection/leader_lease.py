"""The claim to detect: who holds it detects for all gateways that share a store.

Rules that hold here:
- It is held until so many seconds after it was last asked for, by a clock that goes on while
  the machine sleeps. Asking, not answering, is when the time begins.
- It is renewed with everything that is written, and by itself where nothing is.
- A process that was killed on this machine keeps nobody waiting: that it is gone is looked up.
  What is known of processes elsewhere is only that they no longer renew.
- Who finds it in somebody else's hands has written nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import psutil

from penstock.clock import boot_clock
from penstock.store.detection import HOLDER_BYTES, DetectionStore, Detector

_RENEWALS: Final = 3
_MARK_LENGTH: Final = HOLDER_BYTES  # half of a holder's digits
_PROCESS: Final = re.compile(r", process ([0-9]{1,9})$")


def make_place() -> str:
    """Say where this process runs, for people."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def make_holder() -> str:
    """Name this process as a holder: what it runs on first, so that others there know it."""
    return _machine_mark(os.getpid()) + secrets.token_hex(_MARK_LENGTH // 2)


def is_gone(detector: Detector) -> bool:
    """Say whether a holder was a process of this machine that is no more."""
    found = _PROCESS.search(detector.place)
    if found is None:
        return False
    pid = int(found[1])
    return detector.holder.startswith(_machine_mark(pid)) and not _runs(pid)


def _runs(pid: int) -> bool:
    """Say whether a process runs; one that was killed and only waits to be counted does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return psutil.pid_exists(pid)


def _machine_mark(pid: int) -> str:
    """Return a mark of a process number on this machine, since it started, as seen from here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        # Nothing tells this machine from others: then nobody is known to be gone.
        return secrets.token_hex(_MARK_LENGTH // 2)
    return hashlib.sha256(f"{boot} {space} {pid}".encode()).hexdigest()[:_MARK_LENGTH]


class LeaderLease:
    """One gateway's claim."""

    def __init__(
        self, store: DetectionStore, lease: float, run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self.lease = lease
        self.pause = lease / _RENEWALS
        """How long it may go without being renewed."""
        self._store = store
        self._run_in_thread = run_in_thread
        self._renewed = float("-inf")
        self.others_until = 0.0
        """Until when others may go by what the holder before has told them, by `boot_clock`."""

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have it."""
        return boot_clock() <= self._renewed + self.lease

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return boot_clock() >= self._renewed + self.pause

    async def take(self) -> Detector | None:
        """Take or renew it; return the gateway that has it, if that is another."""
        mine = self._store.holder
        instead_of, told_for = "", 0.0
        if not self.is_held:
            held: Detector | None = await self._run_in_thread(self._store.find)
            if held is not None and held.holder != mine:
                gone = is_gone(held)
                if not gone and not self._store.is_free(held):
                    return held
                instead_of = held.holder if gone else ""
                told_for = held.told_for / 1000
                if self._store.is_free(held, told_for):
                    told_for = 0.0  # Its end was so long ago that nobody goes by it any more.
        asked = boot_clock()
        held = await self._run_in_thread(self._store.claim, instead_of)
        if held is not None and held.holder != mine:
            return held
        self.renew(asked)
        if told_for:
            self.others_until = boot_clock() + told_for
        return None

    def renew(self, asked: float) -> None:
        """Take note that it was renewed with something that was begun then."""
        self._renewed = max(self._renewed, asked)

    async def release(self) -> None:
        """Give it back."""
        await self._run_in_thread(self._store.release)
        self._renewed = float("-inf")
