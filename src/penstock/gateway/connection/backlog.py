"""What waits on both sides of a client: its own packets, and deliveries that it cannot take yet.

    forward ──▶ must wait ──▶ suspend ──▶ done ──▶ forward what was kept ──▶ read on
                    └── the broker's quota ──▶ still read: only its acknowledgements help

Towards MQTT 5 some brokers send a message once for each subscription that it matches, one
copy after the other, each with the identifier of its subscription (MQTT5 3.3.4 allows both).
The same brokers send clients of 3.1.1 one copy, and the gateway always is a client of MQTT 5.

Rules that hold here:
- Whatever must wait suspends its own client and nobody else. What comes after it is kept in
  order, and the socket is not read until it is done.
- While a client waits for the broker's quota (MQTT5 4.9) it is still read; its acknowledgements
  pass, for they free the quota. What is kept meanwhile is bounded: beyond that the client is
  closed.
- A client that leaves too many answers unread is not served until it reads.
- Never more messages of QoS 1 and 2 are unacknowledged than the client said it takes. What is
  beyond that is kept in order (MQTT5 4.9), and given back when there is room; who gets it back
  decides on it then.
- The gateway goes on reading deliveries while little is kept: what ends an exchange of QoS 2 may
  come behind the next message.
- A copy follows its message at once, equals it, and names subscriptions that were not named
  for that message yet. The same message published twice names them again, so it is no copy.
- The first copy that may be delivered is; the others are acknowledged to the broker.
- Retained messages are sent once for each subscription that asks for them, in any version.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Protocol, cast

from penstock.gateway.connection.context import Cause
from penstock.mqtt import (
    NO_PUBLISH_PROPERTIES,
    MqttError,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
)
from penstock.store.sessions import TakenError
from penstock.telemetry import get_logger

_QOS = 0x06
_MESSAGE_BYTES = 256


def cost(packet: Publish) -> int:
    """Return about what a message that waits takes, however empty it is."""
    return (
        _MESSAGE_BYTES + len(packet.topic_field) + len(packet.properties.raw) + len(packet.payload)
    )


class ReceiveWindow:
    """The messages that a client has not acknowledged, and those that wait for it."""

    __slots__ = ("_in_flight", "_kept", "_released", "_size", "kept_bytes")

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_flight: set[int] = set()
        self._kept: deque[Publish] = deque()
        self._released: Publish | None = None
        self.kept_bytes = 0

    def admits(self, packet: Publish) -> bool:
        """Say whether a message may be sent now; if not, it is kept."""
        if packet is self._released or (not self._kept and not self._is_beyond(packet)):
            return True
        self._kept.append(packet)
        self.kept_bytes += cost(packet)
        return False

    def takes_back(self, packet: Publish) -> bool:
        """Keep a message again that was given back last and could not be decided on."""
        if packet is not self._released:
            return False
        self._released = None
        self._kept.appendleft(packet)
        self.kept_bytes += cost(packet)
        return True

    def send(self, packet: Publish) -> None:
        """Take note that a message is sent."""
        if packet.first & _QOS:
            self._in_flight.add(packet.packet_id)

    def settle(self, packet: Puback | Pubrec | Pubcomp) -> None:
        """Take an answer of the client."""
        if type(packet) is not Pubrec or packet.failed:
            self._in_flight.discard(packet.packet_id)

    def release(self) -> Publish | None:
        """Give back the next message that may be sent now; None: there is none."""
        self._released = None
        if self._kept and not self._is_beyond(self._kept[0]):
            self._released = self._kept.popleft()
            self.kept_bytes -= cost(self._released)
        return self._released

    def _is_beyond(self, packet: Publish) -> bool:
        return bool(
            packet.first & _QOS
            and len(self._in_flight) >= self._size
            and packet.packet_id not in self._in_flight
        )


_RETAIN = 0x01


class DuplicateFilter:
    """Remembers the last message of a connection."""

    __slots__ = ("_named", "_payload", "_properties", "_topic_field", "delivered")

    def __init__(self) -> None:
        self._topic_field = b""
        self._payload = b""
        self._properties = NO_PUBLISH_PROPERTIES
        self._named: set[int] | tuple[int, ...] = ()
        self.delivered = False

    def is_copy(self, packet: Publish) -> bool:
        """Take a message; say whether it is a copy of one that was delivered."""
        return self.is_duplicate(
            packet.first, packet.topic_field, packet.properties, packet.payload
        )

    def is_duplicate(
        self, first: int, topic_field: bytes, properties: PublishProperties, payload: bytes
    ) -> bool:
        """Take the parts of a message; say whether it is a copy of one that was delivered."""
        last = self._properties
        numbers = properties.subscription_identifiers
        if (
            payload == self._payload
            and topic_field == self._topic_field
            and not first & _RETAIN
            and properties.kept == last.kept
            and properties.reserved == last.reserved
            and (named := set(self._named)).isdisjoint(numbers)
        ):
            self._named = named.union(numbers)
            return self.delivered
        self._topic_field = topic_field
        self._payload = payload
        self._properties = properties
        self._named = numbers
        self.delivered = False
        return False


_EXCHANGE = (Puback, Pubrec, Pubrel, Pubcomp)
_REQUEST_BYTES = 256
_log = get_logger("gateway")


class SuspendedClient(Protocol):
    """The client that waits."""

    ended: bool

    def forward(self, packets: Iterator[Packet]) -> None:
        """Deal with packets of the client."""

    def leaves_unread(self) -> bool:
        """Say whether the client leaves too many answers unread."""
        ...

    def hold_reading(self, reason: str) -> None:
        """Stop reading from the client."""

    def release_reading(self, reason: str) -> None:
        """Read again where no other reason is left."""

    def fail(self, error: MqttError) -> None:
        """End the connection because the client broke a rule."""

    def end(self, cause: Cause) -> None:
        """End the connection."""


class Backlog:
    """What one client waits for, and what waits behind it."""

    __slots__ = (
        "_client",
        "_kept",
        "_kept_bytes",
        "_loop",
        "_most",
        "_over_quota",
        "_quota_freed",
        "_task",
        "_was_read",
        "busy",
    )

    def __init__(self, client: SuspendedClient, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.busy = False
        """Whether packets must be kept now."""
        self._client = client
        self._loop = loop
        self._most = most
        self._over_quota = False
        self._kept: deque[Packet | MqttError] | None = None
        self._kept_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._quota_freed: asyncio.Future[None] | None = None
        self._was_read: asyncio.Future[None] | None = None

    def suspend(self, waits: Coroutine[Any, Any, None], rest: Iterator[Packet]) -> None:
        """Let the client wait until something is done; keep the packets after it."""
        self.busy = True
        self._kept = deque(rest)
        self._client.hold_reading("busy")
        self._start(waits)

    def wait_for_quota(self, packet: Publish, rest: Iterator[Packet]) -> None:
        """Hold a message that the broker would not take now."""
        freed = self._quota_freed = self._loop.create_future()
        self.busy = self._over_quota = True
        self._kept_bytes = 0
        self._kept = deque([packet])
        # It may have been suspended for something else before this.
        self._client.release_reading("busy")
        self._start(_wait(freed))
        self.keep(list(rest))

    def free_quota(self) -> None:
        """Take note that the broker has finished with a message."""
        if self._quota_freed is not None:
            _wake(self._quota_freed)
            self._quota_freed = None

    def read(self) -> None:
        """Take note that the client has read what waited for it."""
        _wake(self._was_read)
        self._was_read = None

    def is_unheard(self, rest: Iterator[Packet]) -> bool:
        """Say whether the client leaves too many answers unread; then wait until it reads."""
        if self.busy or not self._client.leaves_unread():
            return False
        self.suspend(self._until_read(), rest)
        return True

    def keep(self, items: Iterable[Packet | MqttError]) -> None:
        """Keep packets for later; acknowledgements do not wait for the broker's quota."""
        if self._kept is None:
            self._kept = deque()
        if not self._over_quota:
            self._kept.extend(items)
            return
        passing: list[Packet] = []
        for item in items:
            if isinstance(item, _EXCHANGE):
                passing.append(item)
            else:
                self._kept.append(item)
                self._kept_bytes += cost(item) if isinstance(item, Publish) else _REQUEST_BYTES
        if passing:
            self._client.forward(iter(passing))
        if self._kept_bytes > self._most:
            self._client.end(Cause.SLOW)

    def cancel(self) -> None:
        """Stop what the client waits for, unless that is what ends it."""
        task = self._task
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()

    def _start(self, waits: Coroutine[Any, Any, None]) -> None:
        task = self._task = self._loop.create_task(self._finish(waits))
        # A task that is cancelled before its first step never comes to its coroutine.
        task.add_done_callback(lambda _: waits.close())

    async def _until_read(self) -> None:
        while self._client.leaves_unread():
            self._was_read = self._loop.create_future()
            await self._was_read

    async def _finish(self, waits: Coroutine[Any, Any, None]) -> None:
        client = self._client
        try:
            await waits
            await self._until_read()
        except MqttError as error:
            client.fail(error)
        except TakenError:
            # The store knows before the broker's DISCONNECT is here.
            client.end(Cause.TAKEOVER)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this client alone
            _log.exception("a request failed and its client was closed", error=error)
            client.end(Cause.BROKER)
        self._task = None
        self.busy = self._over_quota = False
        if client.ended:
            return
        kept, self._kept = self._kept, None
        if kept:
            self._go_on(kept)
        if not self.busy:
            client.release_reading("busy")

    def _go_on(self, kept: deque[Packet | MqttError]) -> None:
        client = self._client
        last = kept[-1]
        error = kept.pop() if isinstance(last, MqttError) else None
        try:
            if kept:
                client.forward(cast("Iterator[Packet]", iter(kept)))
        except MqttError as raised:
            client.fail(raised)
        if error is not None and not client.ended:
            if self.busy:
                self.keep([cast("MqttError", error)])
            else:
                client.fail(cast("MqttError", error))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def _wait(future: asyncio.Future[None]) -> None:
    await future
