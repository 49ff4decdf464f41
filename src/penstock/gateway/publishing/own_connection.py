"""A connection to the broker that belongs to the gateway, kept open for as long as it runs.

    CONNECT ──▶ CONNACK ──▶ open ──▶ lost ──▶ a pause that grows ──▶ CONNECT

Rules that hold here:
- It begins anew each time (clean start): nothing is kept for it at the broker.
- A broker that leaves a PINGREQ unanswered for a keep alive is lost (MQTT5 3.1.2.10).
- What the broker said in its CONNACK is known while it is open.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from typing import Final, cast

from penstock.errors import PenstockError
from penstock.gateway.broker import BrokerAddress
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Disconnect,
    MqttError,
    Packet,
    Properties,
    Reader,
    Sender,
    Will,
)
from penstock.mqtt.codes import FAILURE
from penstock.mqtt.connect import PINGREQ
from penstock.telemetry import get_logger

PING: Final = PINGREQ.encode(V5)
FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_log = get_logger("gateway")


class OwnConnection(asyncio.Protocol):
    """One connection of the gateway's own."""

    purpose = "own"
    """What its client identifier tells of it."""

    def __init__(self, broker: BrokerAddress) -> None:
        self.open = False
        self.granted = Properties()
        """What the broker said in its CONNACK."""
        self.tried = asyncio.Event()
        """Whether it was tried once to open it."""
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.broker = broker
        self._reader = Reader(Sender.SERVER, version=V5)
        self._opened: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._silent = 0

    @abstractmethod
    def take(self, packet: Packet) -> None:
        """Deal with a packet of the broker."""

    @abstractmethod
    def begin(self) -> None:
        """Take note that the connection is open."""

    @abstractmethod
    def lose(self) -> None:
        """Take note that the connection was open, and is lost."""

    @abstractmethod
    def ping(self) -> bool:
        """Send a PINGREQ unless one is under way; say whether one is."""

    def turn_back(self, reason: int) -> None:
        """Take note that the broker refused to open it."""

    def will(self) -> Will | None:
        """Return what the broker is to publish when the connection is lost."""
        return None

    async def run(self) -> None:
        """Keep the connection open for as long as the gateway runs."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._connect()
                self.tried.set()
                opened = self.loop.time()
                await cast("asyncio.Future[None]", self._closed)
                # One that the broker closes again and again is no better than one that it refuses.
                if self.loop.time() - opened >= _LONGEST_PAUSE:
                    pause = FIRST_PAUSE
            except (OSError, TimeoutError, PenstockError) as error:
                _log.warning("a connection of the gateway's own cannot be opened now", error=error)
                self.drop()
            self.tried.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connect(self) -> None:
        broker = self.broker
        self._reader = Reader(Sender.SERVER, version=V5)
        self._opened = self.loop.create_future()
        self._closed = self.loop.create_future()
        async with asyncio.timeout(broker.timeout):
            await broker.connect(lambda: self)
            request = Connect(
                client_id=f"penstock-{self.purpose}-{secrets.token_hex(8)}",
                clean_start=True,
                keep_alive=broker.keep_alive,
                username=broker.username,
                password=broker.password(),
                will=self.will(),
            )
            self.send(request.encode(V5))
            await self._opened

    def send(self, data: bytes) -> None:
        """Write to the broker."""
        if self.transport is not None:
            self.transport.write(data)

    def close(self) -> None:
        """Leave in order."""
        if self.open and self.transport is not None:
            self.open = False
            self.send(Disconnect().encode(V5))
            self.transport.close()

    def drop(self) -> None:
        """Cut the connection off."""
        if self.transport is not None:
            self.transport.abort()

    def tick(self, seconds: int) -> None:
        """Keep the connection alive, and notice a broker that is silent for too long."""
        if self.open and self.ping():
            self._silent += seconds
            if self._silent > self.broker.keep_alive:
                self.drop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Deal with what the broker says."""
        self._silent = 0
        reader = self._reader
        try:
            reader.feed(data)
            while batch := reader.packets():
                for packet in batch:
                    self._take(packet)
        except MqttError as error:
            _log.exception("the broker broke a rule of MQTT", error=error)
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever opens it, and whoever uses it."""
        self.transport = None
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(exc or ConnectionResetError("the broker closed"))
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if self.open:
            self.open = False
            self.lose()

    def _take(self, packet: Packet) -> None:
        match packet:
            case Connack():
                self._accept(packet)
            case Disconnect():
                _log.warning(
                    "the broker ends a connection of the gateway's own",
                    code=f"0x{packet.reason:02x}",
                )
                self.drop()
            case _:
                self.take(packet)

    def _accept(self, answer: Connack) -> None:
        opened = self._opened
        if opened is None or opened.done():
            raise MqttError("a second CONNACK")
        if answer.reason >= FAILURE:
            self.turn_back(answer.reason)
            opened.set_exception(ConnectionRefusedError(f"code 0x{answer.reason:02x}"))
            return
        self.granted = answer.properties
        self.open = True
        self._silent = 0
        opened.set_result(None)
        self.begin()
