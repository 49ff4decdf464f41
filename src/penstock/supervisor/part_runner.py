"""Runs one part: starts it, waits until it is ready, restarts it, stops it.

The states and what leads from one to another are the table in `lifecycle`; this module
does what the states mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.supervisor.child import Child, first_of
from penstock.supervisor.lifecycle import TRANSITIONS, Backoff, PartEvent, PartState
from penstock.supervisor.part import Part, Probe
from penstock.supervisor.parts import PARTS
from penstock.supervisor.status import PartStatus
from penstock.telemetry import counter, gauge, get_logger

PART_UP = gauge("penstock_part_up", "Whether a part runs and was ready.", part=tuple(PARTS))
PART_RESTARTS = counter(
    "penstock_part_restarts", "How often a part was started again.", part=tuple(PARTS)
)


PROBE_SECONDS = 0.05

log = get_logger("supervisor")


class PartRunner:
    """The runner of one part; `run` lasts until the part has stopped for good."""

    def __init__(
        self,
        part: Part,
        config: Config,
        environ: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.part = part
        self.state = PartState.WAITING
        self.restarts = 0
        self.was_ready = asyncio.Event()
        """Set once, when the part was ready for the first time: others may start."""
        self.stopped = asyncio.Event()
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.retry = asyncio.Event()
        self._config = config
        self._environ = environ
        self._changed = changed
        # Spreading restarts needs no strong randomness.
        self._backoff = Backoff(config.supervisor, random.random)
        self._since = time.time()
        self._child: Child | None = None
        self._last_exit: str | None = None
        self._detail: str | None = None

    def status(self) -> PartStatus:
        """Return what is to be said of the part now."""
        address = self.part.address(self._config) if self.part.address else None
        return PartStatus(
            part=self.part.name,
            state=self.state,
            pid=self._child.pid if self._child else None,
            since=self._since,
            restarts=self.restarts,
            last_exit=self._last_exit,
            address=address,
            detail=self._detail,
        )

    def _fire(self, event: PartEvent, detail: str | None = None) -> None:
        self.state = TRANSITIONS[self.state, event]
        self._detail = detail
        self._since = time.time()
        if self.state is PartState.RUNNING:
            self.was_ready.set()
        if self.state is PartState.STOPPED:
            self.stopped.set()
        pid = self._child.pid if self._child else None
        log.info("part changed", component=self.part.name, state=self.state, pid=pid)
        self._changed()

    async def run(self, before: Sequence[PartRunner]) -> None:
        """Run the part, after those `before` it are ready, until it is asked to stop."""
        if not await self._wait_for(before):
            self._fire(PartEvent.STOP)
            return
        while True:
            failure = await self._run_once()
            if failure is None:
                return
            delay = self._backoff.fail(time.monotonic())
            if delay is None:
                log.error("part given up", component=self.part.name, count=self.restarts)
                self._fire(PartEvent.GIVE_UP, failure)
                await first_of(self.stop, self.retry)
                self._backoff.forget()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await first_of(self.stop, self.retry)
            self.retry.clear()
            if self.stop.is_set():
                self._fire(PartEvent.STOP)
                return
            self.restarts += 1
            PART_RESTARTS[self.part.name].inc()

    async def _wait_for(self, before: Sequence[PartRunner]) -> bool:
        """Wait until these are ready; False where we are asked to stop first."""
        for other in before:
            self._detail = f"waits for {other.part.name}"
            self._changed()
            await first_of(other.was_ready, self.stop)
        return not self.stop.is_set()

    async def _run_once(self) -> str | None:
        """Run the process once; return why it failed, or None where it was asked to stop."""
        self._fire(PartEvent.START)
        probe = self.part.ready(self._config) if self.part.ready else None
        if probe and await probe.ask():
            return self._fail(f"something else answers at {probe} already")
        try:
            command, folder = self.part.command(self._config), self.part.folder
            child = self._child = Child(
                command, self._environ, folder(self._config) if folder else None
            )
        except PenstockError as error:
            return self._fail(str(error))
        self._changed()
        failure = None
        if await self._until_ready(child, probe):
            self._fire(PartEvent.READY)
            await first_of(child.ended, self.stop)
        elif not self.stop.is_set() and not child.ended.is_set():
            failure = f"not ready within {self._config.supervisor.ready_timeout:g} s"
        if self.stop.is_set():
            self._fire(PartEvent.STOP)
        await child.end(self._config.supervisor.grace, self.hurry)
        self._child, self._last_exit = None, child.exit
        if self.state is PartState.STOPPING:
            self._fire(PartEvent.ENDED)
            return None
        return self._fail(failure or f"ended with {child.exit}")

    def _fail(self, failure: str) -> str:
        log.warning("part failed", component=self.part.name, attempt=self.restarts + 1)
        self._fire(PartEvent.ENDED, failure)
        return failure

    async def _until_ready(self, child: Child, probe: Probe | None) -> bool:
        """Ask the probe again and again; False where the process ends or time is over."""
        deadline = time.monotonic() + self._config.supervisor.ready_timeout
        while not self.stop.is_set() and not child.ended.is_set():
            if probe is None or await probe.ask():
                return not child.ended.is_set()
            if time.monotonic() >= deadline:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await first_of(child.ended, self.stop)
        return False
