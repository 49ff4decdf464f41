"""One process of a part, from its start to its end.

Rules that hold here:
- It leads a session and process group of its own: a Ctrl-C in the terminal reaches the
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
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.errors import UnavailableError, quote

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

    async def end(self, grace: float, hurry: asyncio.Event) -> None:
        """Ask it to stop; kill its group when the grace is over, or as soon as `hurry` is set."""
        if not self.ended.is_set() and not hurry.is_set() and grace > 0:
            # Not through Popen, which might reap the process before its group is ended.
            os.kill(self.pid, signal.SIGTERM)
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
