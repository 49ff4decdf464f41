"""What a part of Penstock is to the supervisor, and which parts there are.

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
- A new part is a new entry of `PARTS`; nothing else changes.
- A part other than the embedded broker runs `penstock VERB` with the same settings.
- The pipeline, rbac, rights, the server and the console run only where `parts` names them: a
  gateway alone needs neither Java nor Kafka, and tells nobody anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Protocol

from penstock.components.mosquitto import (
    broker_command,
    find_listener,
    generate_password,
    make_private_folder,
)
from penstock.config import Config
from penstock.config.installation import SupervisorSettings
from penstock.errors import InvalidError, Problem, UsageError

ANSWER_LIMIT = 64
TRY_SECONDS = 2.0


def _choose_nothing(config: Config) -> Mapping[str, str]:
    del config
    return {}


def _choose_no_ports(config: Config) -> Sequence[int]:
    del config
    return ()


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
    monitors: Callable[[Config], Sequence[int]] = field(default=_choose_no_ports)
    """The ports at which its processes answer /metrics, as far as they are known beforehand."""
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


def _require_embedded(config: Config) -> Mapping[str, str]:
    if config.broker.mode == "external":
        raise UsageError(
            "the part 'broker' is the embedded broker, and broker.mode is external",
            fix="remove 'broker' from parts, or set broker.mode to embedded",
        )
    return {}


def _broker_command(config: Config) -> list[str]:
    key, folder, listener = config.broker.key, config.data / "broker", config.broker.socket
    key.read_or_create(generate_password)
    command = broker_command(folder, listener.name, password=key.read_text())
    folder.chmod(0o700)
    make_private_folder(listener.parent)
    return command


def _verb(*verb: str) -> Callable[[Config], list[str]]:
    """Return what runs a verb of Penstock with the settings of this installation."""

    def command(config: Config) -> list[str]:
        named = ["--config", str(config.file)] if config.file else []
        return [sys.executable, "-m", "penstock", *named, *verb]

    return command


def _monitor_probe(config: Config, port: int) -> Probe | None:
    # Without a port that is known beforehand nobody can ask.
    return HttpProbe(config.monitor.host, port) if config.monitor.enabled and port else None


def _gateway_monitors(config: Config) -> Sequence[int]:
    first = config.gateway.monitor_port
    return range(first, first + config.gateway.workers) if first else ()


def _gateway_probe(config: Config) -> Probe:
    listener = next(iter(config.gateway.listeners.values()))
    monitored = _monitor_probe(config, config.gateway.monitor_port)
    return monitored or TcpProbe(listener.host, listener.port)


def _gateway_address(config: Config) -> str:
    return ", ".join(
        f"{listener.transport} {listener.host}:{listener.port}"
        for listener in config.gateway.listeners.values()
    )


def _server_probe(config: Config) -> Probe:
    listener = next(iter(config.server.listeners.values()))
    monitored = _monitor_probe(config, config.server.monitor_port)
    return monitored or TcpProbe(listener.host, listener.port)


def _server_address(config: Config) -> str:
    return ", ".join(
        f"{listener.protocol} {listener.host}:{listener.port}"
        for listener in config.server.listeners.values()
    )


def _console_probe(config: Config) -> Probe:
    listener = config.console.listener
    monitored = _monitor_probe(config, config.console.monitor_port)
    return monitored or TcpProbe(listener.host, listener.port)


def _require_kafka(config: Config) -> Mapping[str, str]:
    if config.kafka.bootstrap is None:
        raise UsageError(
            "the part 'rbac' holds Kafka to the roles, and kafka.bootstrap is not set",
            fix="set kafka.bootstrap, or remove 'rbac' from parts",
        )
    return {}


BROKER = Part(
    name="broker",
    command=_broker_command,
    ready=lambda config: SocketProbe(config.broker.socket),
    address=lambda config: str(config.broker.socket),
    needs=("mosquitto",),
    folder=lambda config: config.broker.socket.parent,
    choose=_require_embedded,
)
"""The embedded broker: Mosquitto on a socket, its state in the data folder."""

GATEWAY = Part(
    name="gateway",
    command=_verb("gateway"),
    after=("broker",),
    ready=_gateway_probe,
    address=_gateway_address,
    monitors=_gateway_monitors,
    reloads=True,
)
"""The MQTT gateway, in front of the broker."""

PIPELINE = Part(
    name="pipeline",
    command=_verb("views", "run"),
    ready=lambda config: _monitor_probe(config, config.pipeline.monitor_port),
    monitors=lambda config: [config.pipeline.monitor_port],
    address=lambda config: config.pipeline.master,
    needs=("java",),
)
"""Spark, which turns streams into their views."""

RBAC = Part(
    name="rbac",
    command=_verb("rbac", "watch"),
    ready=lambda config: _monitor_probe(config, config.kafka.monitor_port),
    monitors=lambda config: [config.kafka.monitor_port],
    address=lambda config: config.kafka.bootstrap or "",
    choose=_require_kafka,
)
"""The reconciler of Kafka's users and ACLs with the definitions."""

RIGHTS = Part(
    name="rights",
    command=_verb("requests", "work"),
    ready=lambda config: _monitor_probe(config, config.rights.monitor_port),
    monitors=lambda config: [config.rights.monitor_port],
)
"""The worker that tells services of privacy requests, and follows them up."""

SERVER = Part(
    name="server",
    command=_verb("server", "run"),
    ready=_server_probe,
    address=_server_address,
    monitors=lambda config: [config.server.monitor_port],
    reloads=True,
)
"""The server of privacy requests, by REST and gRPC."""

CONSOLE = Part(
    name="console",
    command=_verb("console", "run"),
    ready=_console_probe,
    address=lambda config: config.console.address,
    monitors=lambda config: [config.console.monitor_port],
    reloads=True,
)
"""The console: pages for data officers, operators and developers."""

PARTS: dict[str, Part] = {
    part.name: part for part in (BROKER, GATEWAY, PIPELINE, RBAC, RIGHTS, SERVER, CONSOLE)
}


def configured_parts(config: Config) -> list[Part]:
    """Return the parts that the settings name; raise where there are none or unknown ones."""
    problems = [
        Problem(config.place("parts", index), f"there is no part {name!r}", _hint(name))
        for index, name in enumerate(config.parts)
        if name not in PARTS
    ]
    if problems:
        raise InvalidError(str(config.file or "parts"), problems)
    if not config.parts:
        raise UsageError("the settings name no part to run", fix="add one to `parts`")
    return [PARTS[name] for name in config.parts]


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, PARTS, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(PARTS)}"
