"""What a part of Penstock is to the supervisor: a command, its order, its probe, and its life.

                 START              READY
    waiting ──────────────▶ starting ──────▶ running
       │                     ▲   │              │
       │               START │   │ ENDED        │ ENDED
       │                     │   ▼              │
       │                   backoff ◀────────────┘
       │                     │   │
       │                STOP │   │ GIVE_UP            START (asked for by hand)
       │ STOP                │   ├─────────▶ failed ──────────▶ starting
       ▼                     ▼   │              │
    stopped ◀────────────────────┴── STOP ──────┘
       ▲
       └── ENDED ── stopping ◀── STOP ── starting, running

Rules that hold here:
- A probe never raises and never hangs: it connects, or asks /readyz for a 200.
- What the table does not list cannot happen; a caller that tries is wrong.
- A process exists in `starting`, `running` and `stopping`, and in no other state.
- A failure counts for the length of the window. The delay doubles with each failure that
  counts, up to a limit, and half of it is random so that parts that failed together do
  not restart together. As many failures within the window as are declared, and the part
  is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Protocol

from penstock.components.mosquitto import find_listener
from penstock.config import Config
from penstock.config.sections.installation import SupervisorSettings
from penstock.errors import UsageError

ANSWER_LIMIT = 64
TRY_SECONDS = 2.0


def _choose_nothing(config: Config) -> Mapping[str, str]:
    del config
    return {}


@dataclass(frozen=True, slots=True)
class Part:
    """A program that `penstock up` runs.

    `command` may raise `UnavailableError`; that counts as a failed start. `choose` returns
    environment variables with what the supervisor decides once for all parts, such as the
    port of a broker that was set to 0; it runs before anything is started.
    """

    name: str
    command: Callable[[Config], Sequence[str]]
    after: tuple[str, ...] = ()
    """The parts that must be running first; those that are not configured do not count."""
    ready: Callable[[Config], Probe | None] | None = None
    """Its readiness probe; without one it is ready as soon as it is started."""
    address: Callable[[Config], str] | None = None
    """Where it can be reached, for the status."""
    needs: tuple[str, ...] = ()
    """The components (see `penstock.components`) it cannot do without."""
    folder: Callable[[Config], Path] | None = None
    """Where it runs; else where the supervisor does."""
    choose: Callable[[Config], Mapping[str, str]] = field(default=_choose_nothing)
    reloads: bool = False
    """Whether SIGHUP lets it read its files again; others are not told."""


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Sort parts so that each comes after those it needs; ties keep the given order."""
    named = {part.name: part for part in parts}
    sorter = TopologicalSorter(
        {name: [before for before in part.after if before in named] for name, part in named.items()}
    )
    try:
        return [named[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = " → ".join(error.args[1])
        raise UsageError(
            f"these parts wait for each other: {circle}", fix="remove one `after` of them"
        ) from None


class Probe(Protocol):
    """Asks a part once whether it is ready; it never raises and never hangs."""

    async def ask(self) -> bool:
        """Whether the part is ready now."""


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Ready when something accepts a connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    async def ask(self) -> bool:
        """Connect and close."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TRY_SECONDS):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                return True
        return False


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """Ready when a program of ours accepts a connection at a socket."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    async def ask(self) -> bool:
        """Connect and close."""
        return await asyncio.to_thread(find_listener, self.path) is not None


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when a GET is answered with status 200."""

    host: str
    port: int
    path: str = "/readyz"

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"

    async def ask(self) -> bool:
        """Ask and read the first line of the answer."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TRY_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, limit=ANSWER_LIMIT
                )
                try:
                    request = f"GET {self.path} HTTP/1.0\r\nHost: {self.host}\r\n\r\n"
                    writer.write(request.encode())
                    answer = await reader.read(ANSWER_LIMIT)
                    return answer.startswith((b"HTTP/1.0 200 ", b"HTTP/1.1 200 "))
                finally:
                    writer.close()
        return False


class PartState(StrEnum):
    """Where a part is in its life."""

    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    BACKOFF = auto()
    FAILED = auto()
    STOPPING = auto()
    STOPPED = auto()


class PartEvent(StrEnum):
    """What can happen to a part."""

    START = auto()
    """All it comes after are ready, or its delay is over: its process is started."""
    READY = auto()
    """Its probe succeeded."""
    ENDED = auto()
    """Its process has ended, by itself or by our doing."""
    GIVE_UP = auto()
    """It failed too often in too short a time."""
    STOP = auto()
    """It shall stop, and all that stand on it have stopped."""


TRANSITIONS: dict[tuple[PartState, PartEvent], PartState] = {
    (PartState.WAITING, PartEvent.START): PartState.STARTING,
    (PartState.WAITING, PartEvent.STOP): PartState.STOPPED,
    (PartState.STARTING, PartEvent.READY): PartState.RUNNING,
    (PartState.STARTING, PartEvent.ENDED): PartState.BACKOFF,
    (PartState.STARTING, PartEvent.STOP): PartState.STOPPING,
    (PartState.RUNNING, PartEvent.ENDED): PartState.BACKOFF,
    (PartState.RUNNING, PartEvent.STOP): PartState.STOPPING,
    (PartState.BACKOFF, PartEvent.START): PartState.STARTING,
    (PartState.BACKOFF, PartEvent.GIVE_UP): PartState.FAILED,
    (PartState.BACKOFF, PartEvent.STOP): PartState.STOPPED,
    (PartState.FAILED, PartEvent.START): PartState.STARTING,
    (PartState.FAILED, PartEvent.STOP): PartState.STOPPED,
    (PartState.STOPPING, PartEvent.ENDED): PartState.STOPPED,
}


class Backoff:
    """The failures of one part; clock and randomness are passed in."""

    def __init__(self, settings: SupervisorSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._failed_at: deque[float] = deque()

    def fail(self, now: float) -> float | None:
        """Note a failure; return the seconds to wait, or None where the part is given up."""
        settings = self._settings
        self._failed_at.append(now)
        while self._failed_at[0] <= now - settings.window:
            self._failed_at.popleft()
        count = len(self._failed_at)
        if count >= settings.failures:
            return None
        # The exponent is bounded by the number of failures, which is bounded by settings.
        whole = min(settings.backoff_limit, settings.backoff * 2.0 ** (count - 1))
        return whole * (0.5 + 0.5 * self._random())

    def forget(self) -> None:
        """Forget all failures, because someone asked to try again."""
        self._failed_at.clear()
