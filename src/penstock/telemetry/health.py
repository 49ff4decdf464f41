"""Whether this process lives and whether it is ready, asked of the parts themselves.

Rules that hold here:
- A check is a callable without arguments: it returns None where all is well, returns a
  short reason where not. Raising, answering anything else, or not answering in time is
  not well either.
- A check may have details: figures that are reported with it, healthy or not.
- Ready means that every registered check is well. Without checks nothing is known to
  be well, so that is not ready.
- A check that hangs holds one thread, never two: while its last run has not ended it is
  reported as failing and not started again.
- Of an error only its type is reported: the report is read over HTTP.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.errors import UsageError, quote

Check = Callable[[], str | None]
Figures = Mapping[str, float]

DEFAULT_TIMEOUT = 2.0
# A probe over HTTP is cut off a little later than this.
TIMEOUT_LIMIT = 4.0
REASON_LIMIT = 200
CHECKS_LIMIT = 64
# Asking more often than this gets the last answer: probes must not become a load.
FRESH_SECONDS = 0.2
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What the checks said: the failing ones with their reasons; figures of those with details."""

    checks: tuple[str, ...]
    failing: dict[str, str]
    details: dict[str, Figures] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are checks and all of them are well."""
        return bool(self.checks) and not self.failing


@dataclass(slots=True)
class _Run:
    """One run of a check in its thread."""

    started: float
    done: threading.Event = field(default_factory=threading.Event)
    ended: float = 0.0
    reason: str | None = "has not answered"
    details: Figures = field(default_factory=dict)


class _Registered:
    """A check with its name, its limit and its last run."""

    def __init__(
        self,
        name: str,
        check: Check,
        timeout: float,
        *,
        liveness: bool,
        details: Callable[[], Figures] | None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.liveness = liveness
        self._check = check
        self._details = details
        self._run: _Run | None = None
        self._lock = threading.Lock()

    def start(self) -> _Run:
        """Start a run, unless one is under way or has just ended."""
        with self._lock:
            run = self._run
            now = time.monotonic()
            if run is not None and (not run.done.is_set() or now - run.ended < FRESH_SECONDS):
                return run
            self._run = run = _Run(started=now)
            threading.Thread(
                target=self._perform, args=(run,), name=f"check-{self.name}", daemon=True
            ).start()
            return run

    def _perform(self, run: _Run) -> None:
        try:
            answer: object = self._check()
            if answer is None or isinstance(answer, str):
                run.reason = answer if answer is None else answer[:REASON_LIMIT]
            else:
                run.reason = f"answered with {type(answer).__name__} instead of a reason"
            if self._details is not None:
                run.details = self._details()
        except BaseException as error:  # noqa: BLE001 (whatever it was, the check is not well)
            run.reason = f"raised {type(error).__name__}"
        finally:
            run.ended = time.monotonic()
            run.done.set()

    def reason(self, run: _Run) -> str | None:
        """Wait for the run as long as its limit allows, and say what is wrong."""
        left = run.started + self.timeout - time.monotonic()
        if run.done.wait(max(0.0, left)):
            return run.reason
        return f"no answer within {self.timeout:g} s"


class Health:
    """The checks of one process."""

    def __init__(self) -> None:
        self._checks: dict[str, _Registered] = {}
        self._lock = threading.Lock()

    def register(
        self,
        name: str,
        check: Check,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        liveness: bool = False,
        details: Callable[[], Figures] | None = None,
    ) -> None:
        """Add a check; `liveness` where a restart of the process is what would help."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{quote(name)} is not a name for a check", fix="use lower-case words")
        if not 0 < timeout <= TIMEOUT_LIMIT:
            raise UsageError(
                f"the check {quote(name)} cannot take {timeout:g} s",
                fix=f"give it up to {TIMEOUT_LIMIT:g} s",
            )
        with self._lock:
            if name in self._checks or len(self._checks) >= CHECKS_LIMIT:
                raise UsageError(
                    f"the check {quote(name)} is registered already, or {CHECKS_LIMIT} others are"
                )
            self._checks[name] = _Registered(
                name, check, timeout, liveness=liveness, details=details
            )

    def readiness(self) -> HealthReport:
        """Ask all checks, side by side."""
        with self._lock:
            asked = list(self._checks.values())
        return _ask(asked)

    def liveness(self) -> HealthReport:
        """Run the checks of whether this process can go on; that it answers is one."""
        with self._lock:
            asked = [check for check in self._checks.values() if check.liveness]
        report = _ask(asked)
        return HealthReport(("process", *report.checks), report.failing, report.details)


def _ask(asked: list[_Registered]) -> HealthReport:
    runs = [(check, check.start()) for check in asked]
    reasons = {check.name: check.reason(run) for check, run in runs}
    failing = {name: reason for name, reason in reasons.items() if reason is not None}
    details = {check.name: run.details for check, run in runs if run.details}
    return HealthReport(tuple(reasons), failing, details)
