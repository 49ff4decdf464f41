"""`penstock` as a process of its own, forked from one that has loaded the program already.

    test ──▶ `forked_penstock()` ──▶ a server that has imported all that verbs need
      └──▶ subprocess: this file ──▶ arguments, folder, environment, input and outputs
                                       └──▶ fork ──▶ `penstock.cli.main` ──▶ exit code

Rules that hold here:
- A command is a process as any other: its own locks, connections and memory, an end of its own.
  Only the second that Python takes to import everything is spent once.
- What a test kills or stops it starts by itself (`sys.executable -m penstock`): a signal would
  reach the client here and not the command.
- The server loads nothing that starts threads, and ends with the process that started it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import socket
import sys
import tempfile
from functools import cache
from pathlib import Path

_LIMIT = 1 << 20
_LENGTH = 4
_MODULES = (
    "penstock.cli",
    "penstock.config",
    "penstock.definitions",
    "penstock.masks",
    "penstock.model",
    "penstock.policy",
    "penstock.store",
    "penstock.supervisor",
    "penstock.telemetry",
)
"""Packages that are loaded with all below them, where that has no need of Spark."""
_SPARK = "spark"


@cache
def forked_penstock() -> tuple[str, ...]:
    """Return the command that stands for `penstock`; its server runs as long as this process."""
    import subprocess  # noqa: PLC0415 - the client below has no use for it

    folder = tempfile.TemporaryDirectory(prefix="penstock-commands-")
    path = str(Path(folder.name) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, "serve", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline(), "the server of commands did not start"

    def end() -> None:
        server.communicate()  # closes its input, which ends it
        folder.cleanup()

    atexit.register(end)
    return sys.executable, "-I", "-S", __file__, "run", path


def run(path: str, arguments: list[str]) -> int:
    """Let the server run a command with our folder, environment, input and outputs."""
    asked = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [len(asked).to_bytes(_LENGTH, "big")], [0, 1, 2])
        connection.sendall(asked)
        told = connection.recv(_LENGTH)
    return int.from_bytes(told, "big", signed=True) if told else 1


class Server:
    """Forks a process for each command that is asked for."""

    def __init__(self, path: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        for place in (self._listener, sys.stdin):
            self._selector.register(place, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Return the arguments of a command in its process, and None where the server ends."""
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is self._listener:
                    arguments = self._accept()
                    if arguments is not None:
                        return arguments
                else:
                    self._end(key.fd)

    def _accept(self) -> list[str] | None:
        connection, _ = self._listener.accept()
        head, streams, _, _ = socket.recv_fds(connection, _LENGTH, 3)
        with connection.makefile("rb") as told:
            asked = told.read(min(int.from_bytes(head, "big"), _LIMIT))
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            watched = os.pidfd_open(pid)
            self._running[watched] = pid, connection
            self._selector.register(watched, selectors.EVENT_READ)
            return None
        arguments, folder, environment = json.loads(asked)
        self._leave(connection)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.argv = ["penstock", *arguments]
        return [*arguments]

    def _leave(self, connection: socket.socket) -> None:
        """Close what belongs to the server, in a process of a command."""
        self._selector.close()
        self._listener.close()
        connection.close()
        for watched, (_, other) in self._running.items():
            os.close(watched)
            other.close()

    def _end(self, watched: int) -> None:
        pid, connection = self._running.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with connection:
            try:
                connection.sendall(code.to_bytes(_LENGTH, "big", signed=True))
            except OSError:
                return  # who asked is gone


def load() -> None:
    """Import all that verbs may import when they run."""
    for package in _MODULES:
        parent = importlib.import_module(package)
        for found in pkgutil.walk_packages(parent.__path__, f"{package}."):
            if _SPARK not in found.name and ".streams." not in found.name:
                importlib.import_module(found.name)


def main() -> None:
    """Serve commands, or run one."""
    verb, path, *arguments = sys.argv[1:]
    if verb == "run":
        os._exit(run(path, arguments))
    load()
    # What is loaded stays: no process looks through it again for what could go.
    gc.freeze()
    asked = Server(path).serve()
    if asked is not None:
        importlib.import_module("penstock.cli").main(asked)


if __name__ == "__main__":
    main()
