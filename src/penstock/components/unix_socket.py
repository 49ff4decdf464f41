"""Sockets in the file system, in folders that belong to us alone: where the embedded broker is.

A port on loopback is free for any program of the machine as soon as its owner has crashed. A
socket in a folder of mode 0700 is not, and the kernel tells who listens on it.

Rules that hold here:
- Who listens is asked of the kernel before anything is said: a listener of another user is
  refused, whatever the folder looks like by then.
- A folder that others can enter, or that is another user's, is refused.
- The kernel takes 107 bytes of a path; longer ones are reached through their open folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
