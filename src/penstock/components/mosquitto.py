"""Mosquitto as a child process: the embedded broker on a socket; on loopback, for tests.

Rules that hold here:
- The embedded broker listens on a socket in a folder of ours alone (`unix_socket`), and with a
  password only the gateway may enter: other programs of this machine would go around the rules,
  or take its place after a crash and be told the password.
- The configuration names the socket without its folder, in which the broker runs: Mosquitto
  cuts paths at blanks.
- Its configuration is written whole on every start; no packaged configuration is read.
- With `persistent` its state (retained messages, sessions) is kept in the folder.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import subprocess
from pathlib import Path

from penstock.components import processes
from penstock.components.finders import find_mosquitto
from penstock.errors import UnavailableError

GATEWAY_USER = "penstock"
_ITERATIONS = 101
_SALT_BYTES = 12


def generate_password() -> bytes:
    """Make the password of the gateway at the broker."""
    return secrets.token_urlsafe(32).encode()


def hash_password(password: str, salt: bytes) -> str:
    """Hash as Mosquitto 2 does: PBKDF2 with SHA-512, marked `$7$`."""
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(["", "7", str(_ITERATIONS), *parts])


def _admit(folder: Path, password: str | None) -> list[str]:
    """Return the lines that say who may enter."""
    if password is None:
        return ["allow_anonymous true"]
    users = folder / "users"
    users.unlink(missing_ok=True)
    users.touch(mode=0o600)
    users.write_text(f"{GATEWAY_USER}:{hash_password(password, os.urandom(_SALT_BYTES))}\n")
    return ["allow_anonymous false", f"password_file {users}"]


def write_configuration(
    folder: Path, listener: int | str, *, persistent: bool = True, password: str | None = None
) -> Path:
    """Write the broker's configuration file into `folder` and return its path.

    It listens on a port of loopback, or on a socket of this name in the folder that it runs in.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [
        f"listener {listener} 127.0.0.1" if isinstance(listener, int) else f"listener 0 {listener}",
        *_admit(folder, password),
        "max_inflight_messages 0",
        "max_queued_messages 100000",
        "max_queued_bytes 268435456",
        "set_tcp_nodelay true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        f"persistence {'true' if persistent else 'false'}",
    ]
    if persistent:
        lines += [f"persistence_location {folder}/", "autosave_interval 1800"]
    if os.geteuid() == 0:
        # Mosquitto would give up root for a user that cannot write this folder.
        lines.append("user root")
    path = folder / "mosquitto.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def broker_command(
    folder: Path, listener: int | str, *, persistent: bool = True, password: str | None = None
) -> list[str]:
    """Return the command that runs the broker with its state in `folder`."""
    found = find_mosquitto()
    if found.path is None:
        raise UnavailableError("the program mosquitto was not found", fix=found.fix)
    configuration = write_configuration(folder, listener, persistent=persistent, password=password)
    return [str(found.path), "-c", str(configuration)]


class MosquittoServer(processes.Server):
    """A broker that lives as long as the `with` block."""

    def __init__(
        self, folder: Path, *, port: int = 0, persistent: bool = True, password: str | None = None
    ) -> None:
        self.folder = folder
        self.password = password
        self.port = port or processes.free_port()
        self.persistent = persistent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise UnavailableError("the broker is not running", fix="call start() first")
        return self._process.pid

    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        self._process = processes.start(
            broker_command(
                self.folder, self.port, persistent=self.persistent, password=self.password
            ),
            log=self.folder / "mosquitto.log",
            ready=lambda: processes.accepts(self.port),
        )

    def stop(self) -> None:
        """Stop the broker in order."""
        if self._process:
            processes.stop(self._process)
            self._process = None

    def kill(self) -> None:
        """End the broker as a crash would."""
        if self._process:
            self._process.kill()
            self._process.wait(processes.STOP_SECONDS)
            self._process = None
