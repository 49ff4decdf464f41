"""Progress of a run that a person can follow, at a terminal and in the log of a build.

At a terminal one line is kept up to date: percentage, counts, elapsed time, the files that
are being run. Elsewhere a new line follows every half minute. A failure is printed in full at
once, and again at the end, where pytest puts it; the slowest files close the run.

Rules that hold here:
- Under xdist the controller prints and the workers are silent. A thread keeps the clock going
  while a long test runs. Without xdist output belongs to the test that runs, so lines appear
  between tests only.
- `-v` leaves everything as pytest does it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator

import pytest

LOG_SECONDS = 30.0
TERMINAL_SECONDS = 1.0
LONG_SECONDS = 20.0
"""How long a test runs before it is named; until then its file is."""
SLOWEST_FILES = 15


class Progress:
    """What the run has done so far, and the lines that say so."""

    def __init__(self, config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._interactive = reporter.isatty
        self._period = TERMINAL_SECONDS if self._interactive else LOG_SECONDS
        self._began = self._told = time.monotonic()
        self._total = 0
        self._done = 0
        self._outcomes: Counter[str] = Counter()
        self._running: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        parallel = config.getoption("dist", "no") != "no"
        self._clock = threading.Thread(target=self._tick, daemon=True) if parallel else None
        reporter.showfspath = False
        reporter._show_progress_info = False

    # --- what happens ---

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self._lock:
            self._running[nodeid] = time.monotonic()
            if self._clock and not self._clock.ident:
                self._clock.start()
            self._tell_if_due()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        with self._lock:
            self._running.pop(nodeid, None)
            self._done += 1
            self._tell_if_due()

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self,
    ) -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
        """Leave out the dots and letters; words stay, for the summary."""
        category, _, word = yield
        return category, "", word

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with self._lock:
            file = _file(report.nodeid)
            self._seconds[file] = self._seconds.get(file, 0.0) + report.duration
            if report.skipped:
                self._outcomes["skipped"] += 1
            elif report.failed:
                self._outcomes["failed"] += 1
                self._tell_failure(report)

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        with self._lock:
            if self._done:
                self._tell()
                self._end_line()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slow = sorted(((it, file) for file, it in self._seconds.items() if it >= 1), reverse=True)
        if len(slow) > 1:
            terminalreporter.section("slowest files")
            for seconds, file in slow[:SLOWEST_FILES]:
                terminalreporter.write_line(f"{seconds:7.1f}s {file}")

    # --- what is told ---

    def _tick(self) -> None:
        # More often than a line is due, so that none comes a period late.
        while not self._ended.wait(TERMINAL_SECONDS):
            with self._lock:
                self._tell_if_due()

    def _tell_if_due(self) -> None:
        if time.monotonic() >= self._told + self._period:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._total = getattr(self._reporter._session, "testscollected", 0) or self._total
        line = "  ".join(self._words(self._told))
        if self._interactive:
            self._reporter.rewrite(line[: self._reporter._tw.fullwidth - 1], erase=True)
        else:
            self._reporter.write_line(line)

    def _end_line(self) -> None:
        if self._interactive:
            self._reporter._tw.line()

    def _words(self, now: float) -> Iterator[str]:
        yield f"[{100 * self._done // max(self._total, 1):3d}%]"
        yield f"{_clock_text(now - self._began)}  {self._done} of {self._total}"
        yield from (f"{count} {outcome}" for outcome, count in sorted(self._outcomes.items()))
        for nodeid, since in sorted(self._running.items(), key=lambda it: it[1]):
            long = now - since >= LONG_SECONDS
            yield f"{nodeid} ({_clock_text(now - since)})" if long else _file(nodeid)

    def _tell_failure(self, report: pytest.TestReport) -> None:
        self._end_line()
        self._reporter.write_sep("_", f"{report.when} failed: {report.nodeid}", red=True)
        report.toterminal(self._reporter._tw)
        self._tell()


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _clock_text(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def register(config: pytest.Config) -> None:
    """Show progress where the run is told to a person: not in workers, not beside `-v`."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.get_verbosity() > 0:
        return
    config.pluginmanager.register(Progress(config, reporter), "penstock-progress")
