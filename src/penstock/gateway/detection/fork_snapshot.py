"""Saves a large state while its owner goes on: a copy of the process does the work.

    fork ──▶ child: the state as it was in this step ──▶ bytes through a pipe ──▶ exit
      └────▶ parent goes on at once; a thread reads the pipe

Rules that hold here:
- The child has the state of exactly one step, because memory is copied when somebody writes
  to it. It touches neither the loop nor any socket or file of its parent: all are closed first.
- It ends by itself, whatever happens: when it is done, when nobody reads, or after a while.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.errors import UnavailableError

_SECONDS: Final = 120
_KEPT: Final = 3  # standard input, output and error


class ForkedSnapshot(NamedTuple):
    """A process that saves."""

    pid: int
    pipe: int

    def read(self) -> bytes:
        """Wait for what it saved; to be called in a thread."""
        with os.fdopen(self.pipe, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if status:
            raise UnavailableError("the state of detection could not be saved")
        return data


def fork_snapshot(save: Callable[[], bytes]) -> ForkedSnapshot:
    """Begin to save what `save` returns, as of now."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Later Pythons warn of other threads' locks. The child takes none: it computes and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writing)
        return ForkedSnapshot(pid, reading)
    status = 1
    try:
        gc.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS)
        os.closerange(_KEPT, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        data = memoryview(save())
        while data:
            data = data[os.write(writing, data) :]
        status = 0
    finally:
        os._exit(status)
