"""What the supervisor says of itself and its parts, and the lock that makes it the only one.

Rules that hold here:
- The status file is replaced whole on every change, so that a reader sees one moment.
- The lock, not the file, shows whether a supervisor runs: the kernel frees it however
  the supervisor ends. A file without a lock is what a dead supervisor left.
- Both are readable by their owner alone: they name processes and addresses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.errors import UnavailableError, quote
from penstock.supervisor.parts import PartState

LOCK_TRIES = 20
LOCK_PAUSE = 0.05
SIZE_LIMIT = 1024 * 1024

Overall = Literal["starting", "running", "degraded", "stopping"]


class PartStatus(BaseModel):
    """One part at one moment."""

    model_config = ConfigDict(frozen=True)

    part: str
    state: PartState
    pid: int | None = None
    since: float
    """When it came into this state, in seconds since 1970."""
    restarts: int = 0
    last_exit: str | None = None
    address: str | None = None
    detail: str | None = None
    """What it waits for, or why it failed."""


class SupervisorStatus(BaseModel):
    """The supervisor and its parts at one moment."""

    model_config = ConfigDict(frozen=True)

    state: Overall
    pid: int
    version: str
    since: float
    config: str | None
    monitor: str | None
    parts: tuple[PartStatus, ...]


def overall(states: list[PartState]) -> Overall:
    """Sum up the states of all parts in one word."""
    if any(state in {PartState.STOPPING, PartState.STOPPED} for state in states):
        return "stopping"
    if any(state in {PartState.BACKOFF, PartState.FAILED} for state in states):
        return "degraded"
    if all(state is PartState.RUNNING for state in states):
        return "running"
    return "starting"


class RunFolder:
    """The folder `run` in the data folder: the lock and the status of its supervisor."""

    def __init__(self, data: Path) -> None:
        self.path = data / "run"
        self._lock = self.path / "supervisor.lock"
        self._status = self.path / "supervisor.json"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only supervisor of this folder as long as the block lasts."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(descriptor):
                raise UnavailableError(
                    f"another supervisor runs on {quote(self.path.parent)}",
                    fix="see `penstock status`; stop it, or use another data folder",
                )
            self.clear()  # what a dead one left is not to be taken for ours
            yield
        finally:
            # The file stays: removing it would let two supervisors lock two files.
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether a supervisor runs on this folder."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def write(self, status: SupervisorStatus) -> None:
        """Replace the status file."""
        descriptor, name = tempfile.mkstemp(dir=self.path, prefix=".supervisor.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(status.model_dump_json())
            Path(name).replace(self._status)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def clear(self) -> None:
        """Remove the status file."""
        self._status.unlink(missing_ok=True)

    def read(self) -> SupervisorStatus | None:
        """Return the status of the supervisor that runs, or None where none does."""
        if not self.is_held():
            return None
        try:
            with self._status.open("rb") as file:
                return SupervisorStatus.model_validate_json(file.read(SIZE_LIMIT))
        except FileNotFoundError:
            return None  # It has the lock and has not said anything yet, or just ended.
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it has another form"
            raise UnavailableError(
                f"the status {quote(self._status)} cannot be read: {reason}",
                fix="ask as the user that runs the supervisor, with the same version",
            ) from None


def _try_lock(descriptor: int) -> bool:
    # More than once, because whoever asks for the status holds the lock for a moment.
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False
