"""A gateway in a thread of its own, with its own loop, store and settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
import yaml

from penstock.config import Config, load
from penstock.gateway.gateway import Gateway
from penstock.gateway.running import Running, run

T = TypeVar("T")


def write_config(folder: Path, broker_port: int, gateway: dict[str, Any] | None = None) -> Config:
    """Write a penstock.yaml for a trial gateway and load it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "open_mode": True,
        "listeners": {"mqtt": {"port": 0}},
        "authentication": {"anonymous": True},
    }
    settings.update(gateway or {})
    path = folder / "penstock.yaml"
    path.write_text(
        yaml.safe_dump({"broker": {"port": broker_port}, "gateway": settings}, sort_keys=False)
    )
    return load(path, {})


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
        self._ready.wait(30)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
        if self._error is not None:
            raise self._error

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

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
    folder: Path, broker_port: int, gateway: dict[str, Any] | None = None
) -> Iterator[GatewayThread]:
    """Run a gateway in front of a broker for as long as the block lasts."""
    thread = GatewayThread(write_config(folder, broker_port, gateway))
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()
