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
- At its own `/metrics` each sample of a part keeps its labels and gains `process`, the part that
  it comes from; the second and further workers of a part have a number behind its name.
- A part that does not answer in time, answers nonsense or too much is left out;
  `penstock_part_scraped` tells which answered. The others are told all the same.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import prometheus_client as prometheus
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from penstock.config import FILE_VARIABLE, Config
from penstock.errors import UnavailableError, quote
from penstock.supervisor.part_runner import PART_UP, PartRunner
from penstock.supervisor.parts import PARTS, Part, PartState, configured_parts, in_order
from penstock.supervisor.status import RunFolder, SupervisorStatus, overall
from penstock.telemetry import Endpoint, Health, get_logger, metrics

SECONDS: Final = 1.5
SIZE_LIMIT: Final = 8 << 20
OWN: Final = "supervisor"
_OK: Final = 200

SCRAPED = metrics.gauge(
    "penstock_part_scraped",
    "Whether the metrics of a part were there when all were gathered last: 1, or 0",
    part=tuple(PARTS),
)

Address = tuple[str, int]


def gather(monitors: Mapping[str, Sequence[Address]]) -> bytes:
    """Return our own metrics and those that the parts answer with now, as one page."""
    asked = [
        (part, number, it) for part, all_ in monitors.items() for number, it in enumerate(all_)
    ]
    with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
        pages = list(pool.map(lambda it: fetch(it[2]), asked))
    for part in monitors:
        answered = [page for (name, _, _), page in zip(asked, pages, strict=True) if name == part]
        SCRAPED[part].set(int(all(page is not None for page in answered)))
    named = [
        (f"{part}-{number}" if number else part, page)
        for (part, number, _), page in zip(asked, pages, strict=True)
        if page is not None
    ]
    return merge([(OWN, metrics.render().decode()), *named])


def fetch(address: Address) -> str | None:
    """Return the page of one process; None where there is none that can be read."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        content = answer.read(SIZE_LIMIT + 1)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != _OK or len(content) > SIZE_LIMIT:
        return None
    try:
        text = content.decode()
        list(text_string_to_metric_families(text))
    except ValueError:
        return None
    return text


def merge(pages: Iterable[tuple[str, str]]) -> bytes:
    """Put pages together: a family stands once, with the samples of all processes."""
    families: dict[str, Metric] = {}
    for process, text in pages:
        for found in text_string_to_metric_families(text):
            family = families.setdefault(
                found.name, Metric(found.name, found.documentation, found.type)
            )
            family.samples += [
                sample._replace(labels={**sample.labels, "process": process})
                for sample in found.samples
            ]
    return prometheus.generate_latest(_Merged(families.values()))


class _Merged(prometheus.CollectorRegistry):
    """What `generate_latest` asks for its families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


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
