"""An installation as users run it: parts under the supervisor, command lines beside them.

The store is a file or a database of a server; both can be taken away, brought back, and be
replaced by an earlier copy of themselves while the parts run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import psycopg

from penstock.components import PostgresServer
from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock

PENSTOCK = (sys.executable, "-c", "from penstock.cli import main; main()")
PATIENCE = 240.0

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str = "it") -> T:
    """Wait for something that is not false, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen in time"
        time.sleep(0.1)
    return found


class Store(Protocol):
    """Where an installation keeps its definitions."""

    url: str

    def take_away(self) -> None:
        """Let nobody reach it."""

    def bring_back(self) -> None:
        """Let it be reached again, as it was."""

    def copy(self) -> None:
        """Keep a copy of now."""

    def replace(self) -> None:
        """Put the copy in its place."""


class FileStore:
    """A file of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "penstock.db"
        self.url = f"sqlite:///{self.path}"
        self._away, self._copy = folder / "away.db", folder / "copy.db"

    def take_away(self) -> None:
        self.path.rename(self._away)

    def bring_back(self) -> None:
        self._away.rename(self.path)

    def copy(self) -> None:
        with (
            contextlib.closing(sqlite3.connect(self.path)) as source,
            contextlib.closing(sqlite3.connect(self._copy)) as target,
        ):
            source.backup(target)

    def replace(self) -> None:
        self._copy.replace(self.path)
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)


class ServerStore:
    """A database of PostgreSQL."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self._admin = server.url.replace("+psycopg", "")
        self._name = name
        self._do(f'CREATE DATABASE "{name}"')
        self.url = f"{self._admin.rsplit('/', 1)[0]}/{name}"

    def take_away(self) -> None:
        self._close(self._name)

    def bring_back(self) -> None:
        self._do(f'ALTER DATABASE "{self._name}" ALLOW_CONNECTIONS true')

    def copy(self) -> None:
        self.take_away()
        self._do(f'CREATE DATABASE "{self._name}-copy" TEMPLATE "{self._name}"')
        self.bring_back()

    def replace(self) -> None:
        self.take_away()
        self._do(f'DROP DATABASE "{self._name}" WITH (FORCE)')
        self._do(f'ALTER DATABASE "{self._name}-copy" RENAME TO "{self._name}"')

    def _close(self, name: str) -> None:
        self._do(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        gone = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(gone, (name,))

    def _do(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement.encode())


class Installation:
    """A folder with its settings, and the processes that run in it."""

    def __init__(self, folder: Path, store: Store, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.store = store
        self.data = folder / "penstock-data"
        self._beside: list[subprocess.Popen[bytes]] = []
        whole = {
            "store": {"url": store.url, "lease": "2s"},
            "monitor": {"port": 0},
            "supervisor": {"backoff": "20ms", "ready_timeout": "240s", "grace": "30s"},
            **settings,
        }
        (folder / "penstock.yaml").write_text(json.dumps(whole))

    def run(self, *arguments: str, told: str = "") -> str:
        """Run a command line to its end, and return what it printed."""
        done = subprocess.run(
            [*forked_penstock(), *arguments],
            cwd=self.folder,
            input=told,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}{self.log()}"
        return done.stdout

    def apply(self, text: str) -> int:
        """Apply definitions, and return the epoch that the store has then."""
        (self.folder / "change.yaml").write_text(text)
        told = json.loads(self.run("apply", "-f", "change.yaml", "--json"))
        return int(told["epoch"])

    def start_beside(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a command that stays, outside of the supervisor."""
        with (self.folder / "beside.log").open("ab") as log:
            process = subprocess.Popen([*PENSTOCK, *arguments], cwd=self.folder, stderr=log)
        self._beside.append(process)
        return process

    def log(self) -> str:
        """Return what the processes have said, to be told with a failure."""
        files = (self.data / "run" / "supervisor.log", self.folder / "beside.log")
        return "\n".join(file.read_text()[-20_000:] for file in files if file.exists())

    def forget_newest_head(self) -> None:
        """Say, as an operator would, that the audit log was set back on purpose."""
        (self.data / "keys" / "audit-signing.head").unlink(missing_ok=True)

    def restarts(self) -> dict[str, int]:
        """Return how often each part was started again."""
        found = RunFolder(self.data).read()
        assert found is not None
        return {part.part: part.restarts for part in found.parts}

    def processes(self) -> Iterator[psutil.Process]:
        """Yield all processes of the installation."""
        found = RunFolder(self.data).read()
        ids = [process.pid for process in self._beside if process.poll() is None]
        for pid in [*ids, *([found.pid] if found else [])]:
            process = psutil.Process(pid)
            yield process
            yield from process.children(recursive=True)

    def lost_files(self) -> list[str]:
        """Return files of the store that a process holds although they were deleted."""
        lost = []
        for process in self.processes():
            with contextlib.suppress(FileNotFoundError, PermissionError):  # it has ended
                for link in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        name = str(link.readlink())
                        if "penstock.db" in name and name.endswith("(deleted)"):
                            lost.append(f"{process.name()} {process.pid}: {name}")
        return lost

    def stop(self) -> None:
        """End all processes at once."""
        for process in self._beside:
            process.kill()
            process.wait()
        found = RunFolder(self.data).read()
        if found is not None:
            os.kill(found.pid, signal.SIGKILL)
            until(lambda: not psutil.pid_exists(found.pid))


def ask_ready(port: int) -> tuple[bool, dict[str, Any]]:
    """Return what /readyz of a part says."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return True, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return False, json.loads(refused.read())
