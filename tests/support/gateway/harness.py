"""A gateway in a thread of its own, with its own loop, store and settings."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop
import yaml

from penstock.components import processes
from penstock.config import Config, load
from penstock.errors import UnavailableError
from penstock.gateway.service.gateway import Gateway
from penstock.gateway.service.process import Running, run, run_until_told

T = TypeVar("T")
PATIENCE = 120.0


def write_config(
    folder: Path, broker_port: int, gateway: dict[str, Any] | None = None, **sections: Any
) -> Config:
    """Write a penstock.yaml for a trial gateway and load it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "open_mode": True,
        "listeners": {"mqtt": {"port": 0}},
        "authentication": {"anonymous": True},
    }
    settings.update(gateway or {})
    path = folder / "penstock.yaml"
    broker = {"mode": "external", "port": broker_port}
    whole = {"broker": broker, "gateway": settings, **sections}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return load(path, {})


def share(folder: Path) -> dict[str, Any]:
    """Return the sections that gateways with one store have in common, its audit keys included."""
    return {
        "store": {"url": f"sqlite:///{folder / 'shared.db'}"},
        "audit": {
            "signing_key": str(folder / "keys" / "audit-signing.key"),
            "pseudonym_key": str(folder / "keys" / "pseudonym.key"),
        },
    }


class GatewayThread:
    """A running gateway."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.running: Running
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="gateway", daemon=True)

    @property
    def gateway(self) -> Gateway:
        return self.running.gateway

    @property
    def port(self) -> int:
        return self.running.listeners[0].port

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the gateway did not become ready"
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE)

    def do(self, work: Callable[[], T]) -> T:
        """Run a function on the gateway's loop."""

        async def step() -> T:
            return work()

        return self.call(step)

    def _main(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with run(self.config) as self.running:
            self._ready.set()
            await self._stop.wait()


@contextmanager
def run_gateway(
    folder: Path, broker_port: int, gateway: dict[str, Any] | None = None, **sections: Any
) -> Iterator[GatewayThread]:
    """Run a gateway in front of a broker for as long as the block lasts."""
    thread = GatewayThread(write_config(folder, broker_port, gateway, **sections))
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


# A server that has imported a gateway once forks the processes: a kill costs milliseconds.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["penstock.gateway.service.process", "uvloop", "yaml"])


def _serve(file: Path, log: Path) -> None:
    """Be a gateway, in a process of its own."""
    with log.open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    uvloop.run(run_until_told(load(file, {})))


class GatewayProcess:
    """A gateway in a process of its own, to be killed."""

    def __init__(self, config: Config, port: int) -> None:
        self.config = config
        self.port = port
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        file = self.config.file
        assert file is not None
        log = file.parent / "gateway.log"
        self._process = _forks.Process(target=_serve, args=(file, log), daemon=True)
        self._process.start()
        deadline = time.monotonic() + processes.READY_SECONDS
        while not processes.accepts(self.port):
            if not self._process.is_alive() or time.monotonic() > deadline:
                self.kill()
                raise UnavailableError(f"the gateway did not become ready: {log.read_text()}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal: to halt it, and to let it go on."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.join(processes.STOP_SECONDS)
        assert not process.is_alive(), "the gateway did not end"
        process.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def make_process(
    folder: Path, broker_port: int, gateway: dict[str, Any] | None = None, **sections: Any
) -> GatewayProcess:
    """Make a gateway process that listens on a free port."""
    port = processes.free_port()
    settings = {"listeners": {"mqtt": {"port": port}}, **(gateway or {})}
    config = write_config(folder, broker_port, settings, monitor={"enabled": False}, **sections)
    return GatewayProcess(config, port)
