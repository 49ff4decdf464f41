"""Runs one part: starts its process, waits until it is ready, restarts it, stops it.

The states and what leads from one to another are the table in `part`; this module
does what the states mean.

Rules that hold here:
- A process leads a session and process group of its own: a Ctrl-C in the terminal reaches the
  supervisor alone, and what the process leaves behind is ended with it.
- Signals go to this process and its group only while its id is ours: the end is learnt
  from a descriptor of the process, the rest of the group is ended, and only then is the
  process reaped and its id free for others.
- It dies with the supervisor (see `launcher`).
- What it prints goes to standard error; standard output is the supervisor's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.config import Config
from penstock.errors import LAST_WORDS, PenstockError, UnavailableError, quote
from penstock.supervisor.parts import PARTS, TRANSITIONS, Backoff, Part, PartEvent, PartState, Probe
from penstock.supervisor.status import PartStatus, RunFolder
from penstock.telemetry import counter, gauge, get_logger

STANDARD_ERROR = 2
LAUNCHER = Path(__file__).with_name("launcher.py")


class Child:
    """A running process; make it inside the event loop's own thread, the main one."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path | None = None
    ) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=STANDARD_ERROR,
                env=dict(environ),
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot start {quote(command[0])}: {error.strerror}",
                fix="see the limits of processes and memory",
            ) from None
        self.pid = self._process.pid
        self.ended = asyncio.Event()
        try:
            self._handle = os.pidfd_open(self.pid)
        except OSError as error:
            self._kill_group()
            self._process.wait()
            raise UnavailableError(
                f"this system does not let us watch a process: {error.strerror}",
                fix="run on Linux 5.3 or newer, and allow pidfd_open where calls are filtered",
            ) from None
        asyncio.get_running_loop().add_reader(self._handle, self._reap)

    @property
    def exit(self) -> str:
        """How it ended, as people say it: `exit 1` or `SIGKILL`."""
        code = self._process.returncode
        if code is None:
            return ""
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name if code < 0 else f"exit {code}"
        return f"signal {-code}"

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._kill_group()
        self._process.wait()
        self.ended.set()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        if not self.ended.is_set():
            # Not through Popen, which might reap the process before its group is ended.
            os.kill(self.pid, number)

    async def end(self, grace: float, hurry: asyncio.Event) -> None:
        """Ask it to stop; kill its group when the grace is over, or as soon as `hurry` is set."""
        if not self.ended.is_set() and not hurry.is_set() and grace > 0:
            self.tell(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await first_of(self.ended, hurry)
        if not self.ended.is_set():
            self._kill_group()
        await self.ended.wait()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


PART_UP = gauge("penstock_part_up", "Whether a part runs and was ready.", part=tuple(PARTS))
PART_RESTARTS = counter(
    "penstock_part_restarts", "How often a part was started again.", part=tuple(PARTS)
)


PROBE_SECONDS = 0.05
WORDS_LIMIT = 1000

log = get_logger("supervisor")


def _tell_end(exit_: str, words: Path) -> str:
    """Say how a part ended, and why, where it has left a word."""
    try:
        why = words.read_text(encoding="utf-8", errors="replace")[:WORDS_LIMIT]
    except OSError:
        return f"ended with {exit_}"
    return f"ended with {exit_}: {why}"


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

    def reload(self) -> None:
        """Let the part read its files again, if it can and runs."""
        if self.part.reloads and self._child is not None and self.state is PartState.RUNNING:
            self._child.tell(signal.SIGHUP)

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
            words = RunFolder(self._config.data).path / f"{self.part.name}.last-words"
            words.unlink(missing_ok=True)
            environ = {**self._environ, LAST_WORDS: str(words)}
            child = self._child = Child(command, environ, folder(self._config) if folder else None)
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
        return self._fail(failure or _tell_end(child.exit, words))

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
