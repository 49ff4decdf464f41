"""Starts one server program on loopback and ends it again, by its own process id."""

from __future__ import annotations

import contextlib
import secrets
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
LEAST_PORT = 15_000
EPHEMERAL = 32_768
PORT_TRIES = 1_000


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
    """Return a loopback port that nobody listens on, and that the kernel gives to nobody.

    Ports of its own choice it may give to another program before ours listens; what is below them
    it leaves alone. Others who choose as we do start elsewhere, by chance.
    """
    first = _ephemeral_ports()
    for _ in range(PORT_TRIES):
        port = LEAST_PORT + secrets.randbelow(first - LEAST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UnavailableError(
        f"no port between {LEAST_PORT} and {first} seems free", fix="end programs that listen there"
    )


def _ephemeral_ports() -> int:
    """Return the first of the ports that the kernel chooses from."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first > LEAST_PORT:
            return first
    return EPHEMERAL


def accepts(port: int) -> bool:
    """Whether something on loopback accepts connections at `port`."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def start(
    command: Sequence[str],
    *,
    log: Path,
    ready: Callable[[], bool],
    cwd: Path | None = None,
    seconds: float = READY_SECONDS,
) -> subprocess.Popen[bytes]:
    """Start `command`, wait until `ready()`, and return it; its output goes to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd
        )
    deadline = time.monotonic() + seconds
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
