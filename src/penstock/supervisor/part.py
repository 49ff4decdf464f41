"""What a part of Penstock is to the supervisor: a command, its order, its readiness probe.

Rules that hold here:
- A probe never raises and never hangs: it connects, or asks /readyz for a 200.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Protocol

from penstock.components.mosquitto import find_listener
from penstock.config import Config
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
