"""The gateway's own connection to the broker: for messages of actions, wills and answers.

    send ──▶ waiting ──▶ PUBLISH, QoS 1 ──▶ PUBACK ──▶ done
                ▲                              │
                └── the connection broke ──────┘

Rules that hold here:
- Whoever hands a message over has authorised it and gives it its stamp.
- A message is done with when the broker has confirmed it; before that it is sent again
  after the connection broke, some times: one on which the broker chokes must not stop the
  others for ever. What is sent again goes one by one, so that it alone is given up. At most
  so many wait: beyond that they are refused, counted and logged.
- No more are unconfirmed than the broker takes (MQTT5 3.2.2.3.3).
- The connection is opened when there is something to send.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.gateway.broker import BrokerAddress
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    PeerLimits,
    Puback,
    Publish,
    Reader,
    Sender,
)
from penstock.mqtt.codes import FAILURE, PACKET_SIZE_LIMIT
from penstock.mqtt.connect import PINGREQ
from penstock.mqtt.properties import UserProperties
from penstock.telemetry import get_logger, metrics

WAITING_LIMIT: Final = 10_000
IN_FLIGHT: Final = 20
TRIES: Final = 10
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_READ_BYTES: Final = 65_536
_log = get_logger("gateway")

_SENT = metrics.counter(
    "penstock_gateway_own_messages",
    "Messages that the gateway publishes itself, by how that ended.",
    outcome=("sent", "refused", "full"),
)


class Prepare(Protocol):
    """Seals what goes to the broker, and vouches for it."""

    def __call__(
        self, topic: str, payload: bytes, listed: bytes, *, retain: bool = False
    ) -> tuple[bytes, bytes]:
        """Return payload and properties as they go there; an error where they cannot."""


Record = Callable[[str, bytes, bool, UserProperties], None]
"""Takes the topic and payload of a message that is sent; True: it has purposes of its own."""


@dataclass(slots=True)
class Sending:
    """A message of the gateway's own."""

    message: Publish
    properties: bytes
    done: Callable[[], None]
    tries: int = 0


class Publisher:
    """Publishes in the gateway's own name."""

    def __init__(
        self, broker: BrokerAddress, record: Record | None = None, prepare: Prepare | None = None
    ) -> None:
        self._broker = broker
        self._record = record
        self._prepare = prepare
        self._waiting: deque[Sending] = deque()
        self._sent: dict[int, Sending] = {}
        self._number = 0
        self._news = asyncio.Event()
        self._emptied = asyncio.Event()
        self._accepted = False
        self._largest = PACKET_SIZE_LIMIT
        self._in_flight = IN_FLIGHT

    def send(
        self,
        topic: str,
        payload: bytes,
        properties: bytes,
        done: Callable[[], None],
        *,
        retain: bool = False,
        restricted: bool = False,
        recorded: bool = True,
        user_properties: UserProperties = (),
    ) -> bool:
        """Take a message to be published; False where too many wait, or it cannot be sealed."""
        if len(self._waiting) >= WAITING_LIMIT:
            _SENT["full"].inc()
            return False
        try:
            sealed, told = payload, properties
            if self._prepare is not None:
                sealed, told = self._prepare(topic, payload, properties, retain=retain)
        except PenstockError as error:
            _log.error("a message was given up", reason="sealed", error=error)
            _SENT["refused"].inc()
            return False
        message = Publish.of(topic, sealed, qos=1, retain=retain, packet_id=1)
        self._waiting.append(Sending(message, told, done))
        self._news.set()
        if recorded and self._record is not None:
            self._record(topic, payload, restricted, user_properties)
        return True

    async def run(self) -> None:
        """Send whatever waits, for as long as the gateway runs."""
        pause = _FIRST_PAUSE
        while True:
            await self._news.wait()
            self._accepted = False
            try:
                await self._serve()
            except (OSError, TimeoutError, PenstockError) as error:
                _log.warning("the gateway's own messages wait for the broker", error=error)
            self._take_back()
            pause = _FIRST_PAUSE if self._accepted else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    def _take_back(self) -> None:
        """Let what was not confirmed wait again, unless the broker seems to choke on it."""
        for sending in reversed(self._sent.values()):
            if sending.tries < TRIES:
                self._waiting.appendleft(sending)
            else:
                _log.error("a message was given up", reason="tries")
                self._settle(sending, "refused")
        self._sent.clear()
        if self._waiting:
            self._news.set()

    async def finish(self, seconds: float) -> None:
        """Give what waits some time to be sent."""
        if self._waiting or self._sent:
            self._emptied.clear()
            async with asyncio.timeout(seconds):
                await self._emptied.wait()

    async def _serve(self) -> None:
        broker = self._broker
        async with asyncio.timeout(broker.timeout):
            reader, writer = await broker.open_stream()
        try:
            packets = Reader(Sender.SERVER, version=V5)
            password = broker.password()
            writer.write(
                Connect(
                    client_id=f"penstock-actions-{secrets.token_hex(8)}",
                    clean_start=True,
                    keep_alive=broker.keep_alive,
                    username=broker.username,
                    password=password,
                ).encode(V5)
            )
            async with asyncio.timeout(broker.timeout):
                while not self._accepted:
                    await self._read(reader, packets)
            listening = asyncio.create_task(self._listen(reader, packets))
            try:
                await self._speak(writer, listening)
            finally:
                listening.cancel()
        finally:
            writer.close()

    async def _speak(self, writer: asyncio.StreamWriter, listening: asyncio.Task[None]) -> None:
        pause = max(self._broker.keep_alive / 2, 1.0)
        while True:
            self._news.clear()
            while self._waiting and len(self._sent) < self._room():
                sending = self._waiting.popleft()
                sending.tries += 1
                self._number = self._number % 0xFFFF + 1
                sending.message.packet_id = self._number
                self._sent[self._number] = sending
                data = sending.message.to_v5(sending.properties)
                if len(data) > self._largest:
                    del self._sent[self._number]
                    _log.error("a message was given up", reason="size")
                    self._settle(sending, "refused")
                    continue
                writer.write(data)
            await writer.drain()
            news = asyncio.create_task(self._news.wait())
            either: set[asyncio.Task[Any]] = {news, listening}
            done, _ = await asyncio.wait(either, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if listening in done:
                listening.result()
            if not done:
                writer.write(PINGREQ.encode(V5))

    def _room(self) -> int:
        """Return how many may be unconfirmed before the next one is sent."""
        suspect = self._waiting[0].tries or any(it.tries > 1 for it in self._sent.values())
        return 1 if suspect else self._in_flight

    async def _listen(self, reader: asyncio.StreamReader, packets: Reader) -> None:
        while True:
            await self._read(reader, packets)

    async def _read(self, reader: asyncio.StreamReader, packets: Reader) -> None:
        """Read what the broker says."""
        data = await reader.read(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the broker closed")
        packets.feed(data)
        while batch := packets.packets():
            for packet in batch:
                if isinstance(packet, Connack):
                    if packet.reason >= FAILURE:
                        raise ConnectionRefusedError(f"code 0x{packet.reason:02x}")
                    self._accepted = True
                    granted = PeerLimits.said_in(packet.properties)
                    self._largest = granted.maximum_packet_size
                    self._in_flight = min(IN_FLIGHT, granted.receive_maximum)
                elif isinstance(packet, Puback):
                    self._confirm(packet)

    def _confirm(self, packet: Puback) -> None:
        sending = self._sent.pop(packet.packet_id, None)
        if sending is None:
            return
        if packet.reason >= FAILURE:
            _log.warning("the broker refused a message", code=f"0x{packet.reason:02x}")
        self._news.set()
        self._settle(sending, "refused" if packet.reason >= FAILURE else "sent")

    def _settle(self, sending: Sending, outcome: str) -> None:
        _SENT[outcome].inc()
        if not self._waiting and not self._sent:
            self._emptied.set()
        sending.done()
