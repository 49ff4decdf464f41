"""Runs the parts of an installation together: ordered start, ordered stop, one status.

Rules that hold here:
- A part starts when all it comes after have been ready once, and stops when all that
  come after it have stopped.
- The first signal to stop is orderly: each part has its grace. The second one hurries:
  what is left is killed. SIGUSR1 tries the parts that were given up again.
- Everything happens in the one event loop of the main thread: the kernel ties the lives
  of the parts to the thread that started them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from penstock import __version__
from penstock.config import Config
from penstock.supervisor.keeper import Keeper
from penstock.supervisor.machine import State
from penstock.supervisor.metrics import PART_UP
from penstock.supervisor.part import Part, in_order
from penstock.supervisor.status import RunFolder, Status, overall
from penstock.telemetry import Endpoint, Health, get_logger

log = get_logger("supervisor")


class Supervisor:
    """The supervisor of one data folder; `run` lasts until it has stopped."""

    def __init__(self, config: Config, parts: Sequence[Part], environ: Mapping[str, str]) -> None:
        self._config = config
        self._folder = RunFolder(config.data)
        self._environ = environ
        self._parts = in_order(parts)
        self._keepers: dict[str, Keeper] = {}
        self._since = time.time()
        self._monitor: Endpoint | None = None
        self._stopping = False
        self._told: Callable[[Status], None] | None = None

    def run(self, told: Callable[[Status], None] | None = None) -> None:
        """Run all parts until a signal asks to stop; raise where another supervisor runs.

        `told` is called with every new status.
        """
        self._told = told
        with self._folder.hold():
            try:
                asyncio.run(self._main())
            finally:
                self._folder.clear()

    async def _main(self) -> None:
        self._keepers = {
            part.name: Keeper(part, self._config, self._environ, self._changed)
            for part in self._parts
        }
        self._start_monitor()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGUSR1, self.retry)
        self._changed()
        log.info("supervisor started", pid=os.getpid(), count=len(self._keepers))
        try:
            async with asyncio.TaskGroup() as tasks:
                for keeper in self._keepers.values():
                    tasks.create_task(keeper.keep(self._before(keeper)))
        finally:
            if self._monitor:
                self._monitor.stop()
        log.info("supervisor stopped")

    def _start_monitor(self) -> None:
        settings = self._config.monitor
        if not settings.enabled:
            return
        health = Health()
        health.register("parts", self._check_parts)
        self._monitor = Endpoint(health, host=settings.host, port=settings.port)
        self._monitor.start()

    def _check_parts(self) -> str | None:
        down = [name for name, keeper in self._keepers.items() if keeper.state != State.RUNNING]
        return f"not running: {', '.join(down)}" if down else None

    def _before(self, keeper: Keeper) -> list[Keeper]:
        return [self._keepers[name] for name in keeper.part.after if name in self._keepers]

    def _behind(self, keeper: Keeper) -> list[Keeper]:
        return [other for other in self._keepers.values() if keeper in self._before(other)]

    def stop(self) -> None:
        """Stop in order; asked a second time, hurry."""
        if self._stopping:
            log.warning("supervisor hurries")
            for keeper in self._keepers.values():
                keeper.hurry.set()
        self._stopping = True
        self._stop_free()

    def _stop_free(self) -> None:
        """Ask those parts to stop that nothing stands on any more."""
        for keeper in self._keepers.values():
            if all(other.state is State.STOPPED for other in self._behind(keeper)):
                keeper.stop.set()

    def retry(self) -> None:
        """Try again at once what waits for a restart or was given up."""
        for keeper in self._keepers.values():
            if keeper.state in {State.BACKOFF, State.FAILED}:
                keeper.retry.set()

    def _changed(self) -> None:
        for name, keeper in self._keepers.items():
            PART_UP[name].set(keeper.state is State.RUNNING)
        if self._stopping:
            self._stop_free()
        status = self.status()
        if self._told:
            self._told(status)
        try:
            self._folder.write(status)
        except OSError as error:
            # A full disk must not bring down what runs.
            log.warning("status not written", error=error)

    def status(self) -> Status:
        """Return what is to be said now."""
        states = [keeper.state for keeper in self._keepers.values()]
        return Status(
            state="stopping" if self._stopping else overall(states),
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            config=str(self._config.file) if self._config.file else None,
            monitor=self._monitor.url if self._monitor else None,
            parts=tuple(keeper.status() for keeper in self._keepers.values()),
        )
