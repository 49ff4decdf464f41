"""The leader lease: its holder detects for all gateways that share a store.

Rules that hold here:
- It is held for so many seconds after the last renewal was sent, by a clock that goes on while
  the machine sleeps. Sending, not answering, is when the time begins.
- Every write to the store renews it; where nothing is written, it is renewed by itself.
- A process of this machine that was killed delays nobody: that it is gone is looked up. Of
  processes elsewhere it is only known that they no longer renew.
- A gateway that finds it in the hands of another has written nothing.
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
from penstock.store.detection.journal import HOLDER_BYTES, DetectionStore, LeaderRecord

_RENEWALS: Final = 3
_MARK_LENGTH: Final = HOLDER_BYTES  # half of a holder's digits
_PROCESS: Final = re.compile(r", process ([0-9]{1,9})$")


def make_place() -> str:
    """Say where this process runs, for people."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def make_holder() -> str:
    """Name this process as a holder: what it runs on first, so that others there know it."""
    return _machine_mark(os.getpid()) + secrets.token_hex(_MARK_LENGTH // 2)


def is_gone(leader: LeaderRecord) -> bool:
    """Say whether a holder was a process of this machine that is no more."""
    found = _PROCESS.search(leader.place)
    if found is None:
        return False
    pid = int(found[1])
    return leader.holder.startswith(_machine_mark(pid)) and not _runs(pid)


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
    """The lease, as one gateway holds it or not."""

    def __init__(
        self, store: DetectionStore, seconds: float, run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self.seconds = seconds
        self.renewal_seconds = seconds / _RENEWALS
        """How long it may go without a renewal."""
        self._store = store
        self._run_in_thread = run_in_thread
        self._renewed = float("-inf")
        self.others_until = 0.0
        """Until when followers may rely on the state of the last holder, by `boot_clock`."""

    @property
    def is_held(self) -> bool:
        """Whether no other gateway can hold it."""
        return boot_clock() <= self._renewed + self.seconds

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return boot_clock() >= self._renewed + self.renewal_seconds

    async def acquire(self) -> LeaderRecord | None:
        """Acquire or renew it; return its holder, if that is another gateway."""
        mine = self._store.holder
        instead_of, told_for = "", 0.0
        if not self.is_held:
            held: LeaderRecord | None = await self._run_in_thread(self._store.find)
            if held is not None and held.holder != mine:
                gone = is_gone(held)
                if not gone and not self._store.is_free(held):
                    return held
                instead_of = held.holder if gone else ""
                told_for = held.told_for / 1000
                if self._store.is_free(held, told_for):
                    told_for = 0.0  # Its end was so long ago that nobody relies on its state.
        sent = boot_clock()
        held = await self._run_in_thread(self._store.acquire, instead_of)
        if held is not None and held.holder != mine:
            return held
        self.renew(sent)
        if told_for:
            self.others_until = boot_clock() + told_for
        return None

    def renew(self, sent: float) -> None:
        """Note a renewal that was sent at a moment."""
        self._renewed = max(self._renewed, sent)

    async def release(self) -> None:
        """Release it, so that another gateway need not wait for its end."""
        await self._run_in_thread(self._store.release)
        self._renewed = float("-inf")
