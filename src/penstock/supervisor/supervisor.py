"""Runs the parts of an installation together: ordered start, ordered stop, one status.

Rules that hold here:
- A part starts when all it comes after have been ready once, and stops when all that
  come after it have stopped.
- The first signal to stop is orderly: each part has its grace. The second one hurries:
  what is left is killed. SIGUSR1 retries the parts that were given up; SIGHUP lets parts read
  their files again, but from a terminal that goes away it stops them.
- Everything happens in the one event loop of the main thread: the kernel ties the lives
  of the parts to the thread that started them.
- What a part chooses for all, such as a free port, goes to every part as an environment
  variable, which goes before the file: all processes have the same settings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from penstock import __version__
from penstock.config import FILE_VARIABLE, Config
from penstock.errors import UnavailableError, quote
from penstock.supervisor.gathered_metrics import gather
from penstock.supervisor.part_runner import PART_UP, PartRunner
from penstock.supervisor.parts import Part, PartState, configured_parts, in_order
from penstock.supervisor.status import RunFolder, SupervisorStatus, overall
from penstock.telemetry import Endpoint, Health, get_logger

log = get_logger("supervisor")


class Supervisor:
    """The supervisor of one data folder; `run` lasts until it has stopped."""

    def __init__(self, config: Config, parts: Sequence[Part], environ: Mapping[str, str]) -> None:
        self._config = config
        self._folder = RunFolder(config.data)
        self._environ = environ
        self._parts = in_order(parts)
        self._runners: dict[str, PartRunner] = {}
        self._since = time.time()
        self._monitor: Endpoint | None = None
        self._stopping = False
        self._on_status: Callable[[SupervisorStatus], None] | None = None

    def run(self, on_status: Callable[[SupervisorStatus], None] | None = None) -> None:
        """Run all parts until a signal asks to stop; raise where another supervisor runs.

        `on_status` is called with every new status.
        """
        self._on_status = on_status
        with self._folder.hold():
            try:
                asyncio.run(self._main())
            finally:
                self._folder.clear()

    async def _main(self) -> None:
        self._runners = {
            part.name: PartRunner(part, self._config, self._environ, self._changed)
            for part in self._parts
        }
        self._start_monitor()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        # In a terminal it says that the terminal is gone; elsewhere it is how one asks a service.
        in_terminal = sys.stdin is not None and sys.stdin.isatty()
        loop.add_signal_handler(signal.SIGHUP, self.stop if in_terminal else self.reload)
        loop.add_signal_handler(signal.SIGUSR1, self.retry)
        self._changed()
        log.info("supervisor started", pid=os.getpid(), count=len(self._runners))
        try:
            async with asyncio.TaskGroup() as tasks:
                for runner in self._runners.values():
                    tasks.create_task(runner.run(self._before(runner)))
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
        self._monitor = Endpoint(
            health, host=settings.host, port=settings.port, render=self._gather_metrics
        )
        self._monitor.start()

    def _gather_metrics(self) -> bytes:
        host = self._config.monitor.host
        running = [it.part for it in self._runners.values() if it.state is PartState.RUNNING]
        asked = {part.name: part.monitors(self._config) for part in running}
        return gather(
            {
                name: [(host, port) for port in ports if port]
                for name, ports in asked.items()
                if ports
            }
        )

    def _check_parts(self) -> str | None:
        down = [name for name, runner in self._runners.items() if runner.state != PartState.RUNNING]
        return f"not running: {', '.join(down)}" if down else None

    def _before(self, runner: PartRunner) -> list[PartRunner]:
        return [self._runners[name] for name in runner.part.after if name in self._runners]

    def _behind(self, runner: PartRunner) -> list[PartRunner]:
        return [other for other in self._runners.values() if runner in self._before(other)]

    def stop(self) -> None:
        """Stop in order; asked a second time, hurry."""
        if self._stopping:
            log.warning("supervisor hurries")
            for runner in self._runners.values():
                runner.hurry.set()
        self._stopping = True
        self._stop_free()

    def _stop_free(self) -> None:
        """Ask those parts to stop that nothing stands on any more."""
        for runner in self._runners.values():
            if all(other.state is PartState.STOPPED for other in self._behind(runner)):
                runner.stop.set()

    def reload(self) -> None:
        """Let parts read their files again."""
        log.info("parts read their files again")
        for runner in self._runners.values():
            runner.reload()

    def retry(self) -> None:
        """Try again at once what waits for a restart or was given up."""
        for runner in self._runners.values():
            if runner.state in {PartState.BACKOFF, PartState.FAILED}:
                runner.retry.set()

    def _changed(self) -> None:
        for name, runner in self._runners.items():
            PART_UP[name].set(runner.state is PartState.RUNNING)
        if self._stopping:
            self._stop_free()
        status = self.status()
        if self._on_status:
            self._on_status(status)
        try:
            self._folder.write(status)
        except OSError as error:
            # A full disk must not bring down what runs.
            log.warning("status not written", error=error)

    def status(self) -> SupervisorStatus:
        """Return what is to be said now."""
        states = [runner.state for runner in self._runners.values()]
        return SupervisorStatus(
            state="stopping" if self._stopping else overall(states),
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            config=str(self._config.file) if self._config.file else None,
            monitor=self._monitor.url if self._monitor else None,
            parts=tuple(runner.status() for runner in self._runners.values()),
        )


Load = Callable[[Mapping[str, str]], Config]


def prepare(load: Load, environ: Mapping[str, str]) -> tuple[Config, Supervisor]:
    """Load the settings, let the parts choose what was left open, and make the data folder.

    What is chosen goes to all parts as environment variables, which go before the file:
    every process of the installation then has the same settings.
    """
    config = load(environ)
    parts = configured_parts(config)
    chosen = {name: value for part in parts for name, value in part.choose(config).items()}
    if config.file:
        chosen[FILE_VARIABLE] = str(config.file)
    settled = {**environ, **chosen}
    config = load(settled)
    try:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"the data folder {quote(config.data)} cannot be made: {error.strerror}",
            fix=f"make it yourself, or change {config.place('data')}",
        ) from None
    return config, Supervisor(config, parts, settled)
