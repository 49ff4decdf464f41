"""A PostgreSQL server of our own on loopback, for tests, benchmarks and trials.

Rules that hold here:
- Everything lives in one folder, given or temporary; nothing of an installed cluster
  is touched.
- PostgreSQL refuses to run as root: as root it runs as the user `postgres` that its
  package made, and the folder is given to that user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from penstock.components import processes
from penstock.components.finders import find_postgresql
from penstock.errors import UnavailableError

SERVER_USER = "postgres"
INITDB_SECONDS = 60


class PostgresServer(processes.Server):
    """A server that lives as long as the `with` block; `url` names its one database."""

    def __init__(self, folder: Path | None = None, *, port: int = 0) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-postgresql-"))
        self.port = port or processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        found = find_postgresql()
        if found.path is None:
            raise UnavailableError("the PostgreSQL server was not found", fix=found.fix)
        self._programs = found.path
        self._as_other = os.geteuid() == 0

    @property
    def url(self) -> str:
        """The address of the database for SQLAlchemy."""
        return f"postgresql+psycopg://penstock@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process id of the running server's main process."""
        if self._process is None:
            raise UnavailableError("the server is not running", fix="call start() first")
        return self._process.pid

    def start(self) -> None:
        """Make the cluster if the folder holds none, and start the server."""
        data = self.folder / "data"
        if self._as_other:
            owner = pwd.getpwnam(SERVER_USER)
            self.folder.mkdir(parents=True, exist_ok=True)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._open_way_to(self.folder)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
        if not (data / "PG_VERSION").exists():
            subprocess.run(
                [
                    *self._prefix(),
                    str(self._programs / "initdb"),
                    f"--pgdata={data}",
                    "--username=penstock",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--no-locale",
                    "--no-instructions",
                ],
                check=True,
                capture_output=True,
                timeout=INITDB_SECONDS,
                cwd="/",
            )
        self._process = processes.start(
            [
                *self._prefix(),
                str(self._programs / "postgres"),
                "-D",
                str(data),
                "-p",
                str(self.port),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ],
            log=self.folder / "postgresql.log",
            ready=self._ready,
            cwd=Path("/"),
        )

    def stop(self) -> None:
        """Stop the server in order; a temporary folder is removed."""
        self._end(signal.SIGINT)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server as a crash would: no shutdown checkpoint, recovery on next start."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(processes.STOP_SECONDS)
        self._process = None

    def _prefix(self) -> list[str]:
        # setpriv replaces itself by the program: the process id stays the server's own.
        if not self._as_other:
            return []
        owner = pwd.getpwnam(SERVER_USER)
        return [
            "setpriv",
            f"--reuid={owner.pw_uid}",
            f"--regid={owner.pw_gid}",
            "--clear-groups",
        ]

    @staticmethod
    def _open_way_to(folder: Path) -> None:
        # pytest makes its temporary folders for their owner alone; the server's user
        # must pass through those that we own below the system's temporary folder.
        top = Path(tempfile.gettempdir()).resolve()
        for parent in folder.resolve().parents:
            if parent == top or top not in parent.parents:
                break
            parent.chmod(parent.stat().st_mode | 0o011)

    def _ready(self) -> bool:
        asked = subprocess.run(
            [
                str(self._programs / "pg_isready"),
                "--quiet",
                "--host=127.0.0.1",
                f"--port={self.port}",
            ],
            check=False,
        )
        return asked.returncode == 0
