"""Mosquitto as a child process: the embedded broker on a socket; on loopback, for tests.

A port on loopback is free for any program of the machine as soon as its owner has crashed. A
socket in a folder of mode 0700 is not, and the kernel tells who listens on it.

Rules that hold here:
- Who listens is asked of the kernel before anything is said: a listener of another user is
  refused, whatever the folder looks like by then.
- A folder that others can enter, or that is another user's, is refused.
- The kernel takes 107 bytes of a path; longer ones are reached through their open folder.
- The embedded broker listens on a socket in a folder of ours alone, and with a password only the
  gateway may enter: other programs of this machine would go around the rules, or take its place
  after a crash and be told the password.
- The configuration names the socket without its folder, in which the broker runs: Mosquitto
  cuts paths at blanks.
- Its configuration is written whole on every start; no packaged configuration is read.
- With `persistent` its state (retained messages, sessions) is kept in the folder.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import socket
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.components import processes
from penstock.components.finders import find_mosquitto
from penstock.errors import UnavailableError, quote

PATH_LIMIT: Final = 107
_TRY_SECONDS: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_folder(folder: Path) -> None:
    """Make a folder for us alone; refuse one that others can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnavailableError(
            f"the folder {quote(folder)} of a socket is not ours", fix="name a folder of your own"
        )
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        raise UnavailableError(
            f"others can enter the folder {quote(folder)} of a socket",
            fix=f"chmod 700 {folder}, or name a folder of its own",
        )


@contextlib.contextmanager
def reach(path: Path) -> Iterator[str]:
    """Give an address of a socket that is short enough to connect to."""
    if len(os.fsencode(path)) <= PATH_LIMIT:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Listener(NamedTuple):
    """Who listens at a socket, as the kernel says."""

    pid: int
    user: int


def check_listener(connected: socket.socket) -> Listener:
    """Refuse a socket on which another user listens; asked before anything is said to it."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise PermissionError(f"user {user} listens at the socket of the broker, not we")
    return Listener(pid, user)


def find_listener(path: Path) -> Listener | None:
    """Return the program of ours that accepts connections at a socket, if one does."""
    with (
        contextlib.suppress(OSError),
        reach(path) as address,
        socket.socket(socket.AF_UNIX) as probe,
    ):
        probe.settimeout(_TRY_SECONDS)
        probe.connect(address)
        return check_listener(probe)
    return None


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
