"""Starts one server program on loopback and ends it again, by its own process id."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from penstock.errors import UnavailableError

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
TAIL_LINES = 8


class Server(ABC):
    """A server that runs from `start` to `stop`, or as long as a `with` block lasts."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """End it, if it runs."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Whether something on loopback accepts connections at `port`."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def start(
    command: Sequence[str], *, log: Path, ready: Callable[[], bool], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `command`, wait until `ready()`, and return it; its output goes to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd
        )
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if ready():
            return process
        time.sleep(0.02)
    stop(process)
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    raise UnavailableError(
        f"{Path(command[0]).name} did not become ready; its last words: " + " | ".join(lines),
        fix="see its log, and `penstock doctor`",
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process: a polite signal first, then a hard one."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
