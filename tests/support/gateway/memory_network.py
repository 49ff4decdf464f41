"""Connections within one event loop, without sockets: what one end writes the other receives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Factory = Callable[[], asyncio.BaseProtocol]


class MemoryTransport(asyncio.Transport):
    """One end of a connection; bytes arrive in the next step of the loop."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
        self.other: MemoryTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing and self.other is not None:
            self._loop.call_soon(self.other.receive, bytes(data))

    def receive(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def close(self) -> None:
        self._end(None)
        if self.other is not None:
            # After what was written before.
            self._loop.call_soon(self.other._end, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def _end(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, error)


class MemoryServer:
    """Listens on a port of the network; nobody connects once it is closed."""

    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self.sockets = [self]
        self._network = network
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._network.servers.pop(self._port, None)


class MemoryNetwork:
    """The ports of one event loop."""

    def __init__(self) -> None:
        self.servers: dict[int, Factory] = {}
        self._last = 10_000

    async def create_server(self, factory: Factory, host: str, port: int) -> MemoryServer:
        del host
        if not port:
            self._last += 1
            port = self._last
        if port in self.servers:
            raise OSError("the port is in use")
        self.servers[port] = factory
        return MemoryServer(self, port)

    async def create_connection(
        self, factory: Factory, host: str, port: int
    ) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
        del host
        await asyncio.sleep(0)
        serve = self.servers.get(port)
        if serve is None:
            raise ConnectionRefusedError
        here, there = MemoryTransport(factory()), MemoryTransport(serve())
        here.other, there.other = there, here
        there.protocol.connection_made(there)
        here.protocol.connection_made(here)
        return here, here.protocol


@contextmanager
def memory_network() -> Iterator[MemoryNetwork]:
    """Let the running loop connect within itself, while the block lasts."""
    loop: Any = asyncio.get_running_loop()
    network = MemoryNetwork()
    loop.create_server, loop.create_connection = network.create_server, network.create_connection
    try:
        yield network
    finally:
        del loop.create_server, loop.create_connection
