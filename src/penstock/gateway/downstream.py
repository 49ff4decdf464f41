"""The client's side of a connection: what clients send, and the way of a publication.

    client ──▶ data_received ──▶ forward ─┬─ known write ──▶ header and stamp ──▶ broker
                                          ├─ new topic, command, purpose ──▶ `admission`
                                          ├─ acknowledgement ──▶ broker
                                          └─ anything else ──▶ `requests`

Rules that hold here:
- Packets of one client are dealt with in their order. What must wait (for the broker, the
  store, a password check) suspends this client alone: `suspend` keeps what comes after it,
  and reading stops until it is done.
- Reading the state of the rules and acting on it is one synchronous step.
- A message goes to the broker only with the stamp of its publisher; a decision that was
  remembered is forgotten with every change of the rules (`generation`).
- While the definitions are stale no decision is remembered, so every message takes the
  way that denies it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from penstock.gateway import admission, opening, requests
from penstock.gateway.ending import Cause, end
from penstock.gateway.window import cost
from penstock.mqtt import (
    NO_PROPERTIES,
    NO_PUBLISH_PROPERTIES,
    PINGRESP,
    V5,
    Connect,
    Connection,
    Limits,
    MqttError,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reader,
    ReceiveMaximumError,
    Sender,
    encode_puback,
)
from penstock.mqtt.aliases import Aliases
from penstock.store.follower import boot_clock

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.session import Session
    from penstock.gateway.upstream import Upstream

_PINGRESP = PINGRESP.encode(V5)
_ACKS = (Puback, Pubrec, Pubcomp)
_EXCHANGE = (Puback, Pubrec, Pubrel, Pubcomp)
_NOTHING_KNOWN: frozenset[str] = frozenset()
_REQUEST_BYTES = 256
_QUEUES = 2


class Downstream(asyncio.Protocol):
    """One client's network connection."""

    __slots__ = (
        "_busy",
        "_holds",
        "_kept_bytes",
        "_over_quota",
        "_task",
        "_waiting",
        "aliases",
        "blocked",
        "budget",
        "connect",
        "connection",
        "ended",
        "gateway",
        "generation",
        "heard",
        "idle",
        "idle_limit",
        "open",
        "peer",
        "problems",
        "quota",
        "quota_freed",
        "reader",
        "refused",
        "session",
        "stalled",
        "stamp",
        "takes",
        "transport",
        "unacked",
        "upstream",
        "version",
        "was_read",
        "writes",
    )

    transport: asyncio.Transport
    session: Session
    connect: Connect
    takes: Limits

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.reader = Reader(
            Sender.CLIENT,
            maximum_packet_size=gateway.limits.packet,
            topics=gateway.topics,
            properties=gateway.client_properties,
        )
        self.connection = Connection()
        self.upstream: Upstream | None = None
        self.version = 0
        self.peer = ""
        self.open = False
        self.ended = False
        self.heard = True
        self.idle = 0
        self.idle_limit = gateway.limits.connect_ticks
        self.stalled = 0
        self.blocked = False
        self.problems = True
        self.generation = -1
        self.stamp = b""
        self.aliases = Aliases(0)
        self.writes: set[str] = set()
        self.unacked: set[int] = set()
        self.refused: set[int] = set()
        self.quota = 0
        self.quota_freed: asyncio.Future[None] | None = None
        self.was_read: asyncio.Future[None] | None = None
        self.budget = 0.0
        self._busy = False
        self._over_quota = False
        self._kept_bytes = 0
        self._holds: set[str] = set()
        self._waiting: deque[Packet | MqttError] | None = None
        self._task: asyncio.Task[None] | None = None

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, unless there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.transport.set_write_buffer_limits(high=self.gateway.limits.queue)
        self.gateway.arrive(self)

    def data_received(self, data: bytes) -> None:
        """Deal with what the client sent."""
        self.heard = True
        counters = self.gateway.counters
        counters.bytes_in += len(data)
        reader = self.reader
        reader.feed(data)
        try:
            while batch := reader.packets():
                if self._busy:
                    self._keep(batch)
                else:
                    self.forward(iter(batch))
        except MqttError as error:
            if self._busy:
                self._keep([error])
            else:
                self.fail(error)

    def pause_writing(self) -> None:
        """Take note that the client reads too slowly, and let the broker wait for it."""
        self.blocked = True
        if self.upstream is not None and self.gateway.limits.pause_broker:
            self.upstream.pause("client")

    def resume_writing(self) -> None:
        """Take note that the client has caught up."""
        self.blocked = False
        self.stalled = 0
        _wake(self.was_read)
        self.was_read = None
        if self.upstream is not None:
            self.upstream.resume("client")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection to the broker as the client ended this one: without a word."""
        del exc
        self.gateway.leave(self)
        end(self, Cause.LOST)

    # --- the way of a publication ---

    # One loop on purpose: on the way of every message a call would cost more than it tidies.
    def forward(self, packets: Iterator[Packet]) -> None:  # noqa: C901, PLR0911, PLR0912, PLR0915
        """Pass packets on to the broker, in one step up to the first that must wait."""
        if not self.open:
            self._open(next(packets), packets)
            return
        gateway = self.gateway
        rules = gateway.rules
        if self.generation != rules.generation:
            self.renew()
        known: set[str] | frozenset[str] = self.writes
        if boot_clock() > rules.fresh_until:
            known = _NOTHING_KNOWN
        upstream = self.broker()
        stamp = self.stamp
        unacked = self.unacked
        out: list[bytes] = []
        passed = 0
        try:
            for packet in packets:
                if type(packet) is Publish:
                    properties = packet.properties
                    listed = stamp
                    plain = True
                    if properties is not NO_PUBLISH_PROPERTIES:
                        if properties.topic_alias:
                            self.aliases.expand(packet)
                        listed = properties.kept + stamp
                        plain = not properties.reserved and properties.response_topic is None
                    if packet.first & 6 and packet.packet_id not in unacked:
                        if len(unacked) >= self.quota or packet.packet_id in upstream.questions:
                            self._wait_for_quota(packet, packets)
                            return
                        unacked.add(packet.packet_id)
                    if packet.topic not in known or not plain:
                        outcome = admission.admit(self, packet)
                        if outcome is None:
                            unacked.discard(packet.packet_id)
                            if self.ended or self._is_deaf(packets):
                                return
                            continue
                        if not isinstance(outcome, bytes):
                            self.suspend(outcome, packets)
                            return
                        listed = properties.kept + outcome
                    out.append(packet.to_v5(listed))
                    passed += 1
                elif (
                    type(packet) is Puback
                    and packet.properties is NO_PROPERTIES
                    and not packet.reason
                ):
                    out.append(encode_puback(packet.packet_id))
                    if upstream.window is not None:
                        upstream.settle(upstream.window, packet)
                elif isinstance(packet, _ACKS):
                    out.append(packet.encode(V5))
                    if upstream.window is not None:
                        upstream.settle(upstream.window, packet)
                elif type(packet) is Pingreq:
                    # The gateway keeps its own connection to the broker alive.
                    self.transport.write(_PINGRESP)
                    if self._is_deaf(packets):
                        return
                else:
                    upstream.write(out)
                    out.clear()
                    waits = requests.handle(self, packet)
                    if waits is not None:
                        self.suspend(waits, packets)
                        return
                    if self.ended or self._is_deaf(packets):
                        return
        finally:
            # Whatever stopped the loop: what came before it goes to the broker first.
            gateway.counters.messages_in += passed
            upstream.write(out)

    def renew(self) -> None:
        """Forget what was decided under rules that have changed."""
        rules = self.gateway.rules
        self.generation = rules.generation
        self.writes.clear()
        self.stamp = rules.stamp(self.session.principal)
        self.forget_verdicts()

    def forget_verdicts(self) -> None:
        """Forget what was decided for subscriptions that have changed."""
        if self.upstream is not None:
            self.upstream.forget_verdicts()

    def broker(self) -> Upstream:
        """Return the connection to the broker, which every open client has."""
        return cast("Upstream", self.upstream)

    def hold_reading(self, reason: str) -> None:
        """Stop reading from the client, for one of several reasons."""
        if not self._holds and not self.ended:
            self.transport.pause_reading()
        self._holds.add(reason)

    def release_reading(self, reason: str) -> None:
        """Read again where no other reason is left."""
        self._holds.discard(reason)
        if not self._holds and not self.ended:
            self.transport.resume_reading()

    def acknowledged(self, packet_id: int) -> None:
        """Take note that the broker has finished with a message of this client."""
        self.unacked.discard(packet_id)
        if self.quota_freed is not None:
            _wake(self.quota_freed)
            self.quota_freed = None

    # --- what waits ---

    def suspend(self, waits: Coroutine[Any, Any, None], rest: Iterator[Packet]) -> None:
        """Let this client wait until something is done; keep the packets after it."""
        self._busy = True
        self._waiting = deque(rest)
        self.hold_reading("busy")
        self._start(waits)

    def send(self, data: bytes) -> None:
        """Write to the client."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def fail(self, error: MqttError) -> None:
        """End the connection because the client broke a rule."""
        end(self, Cause.PROTOCOL, error=error)

    def cancel(self) -> None:
        """Stop what this client waits for, unless that is what ends it."""
        task = self._task
        if task is not None and task is not asyncio.current_task(self.gateway.loop):
            task.cancel()

    def _keep(self, items: Iterable[Packet | MqttError]) -> None:
        """Keep packets for later; acknowledgements do not wait for the broker's quota."""
        if self._waiting is None:
            self._waiting = deque()
        if not self._over_quota:
            self._waiting.extend(items)
            return
        passing: list[Packet] = []
        for item in items:
            if isinstance(item, _EXCHANGE):
                passing.append(item)
            else:
                self._waiting.append(item)
                self._kept_bytes += cost(item) if isinstance(item, Publish) else _REQUEST_BYTES
        if passing:
            self.forward(iter(passing))
        if self._kept_bytes > self.gateway.limits.queue:
            end(self, Cause.SLOW)

    def _start(self, waits: Coroutine[Any, Any, None]) -> None:
        task = self._task = self.gateway.loop.create_task(self._finish(waits))
        # A task that is cancelled before its first step never comes to its coroutine.
        task.add_done_callback(lambda _: waits.close())

    def _is_deaf(self, rest: Iterator[Packet]) -> bool:
        """Say whether the client leaves too many answers unread; then wait until it reads."""
        if self._busy or not self._leaves_unread():
            return False
        self.suspend(self._until_read(), rest)
        return True

    def _leaves_unread(self) -> bool:
        most = _QUEUES * self.gateway.limits.queue
        return self.blocked and not self.ended and self.transport.get_write_buffer_size() > most

    async def _until_read(self) -> None:
        while self._leaves_unread():
            self.was_read = self.gateway.loop.create_future()
            await self.was_read

    async def _finish(self, waits: Coroutine[Any, Any, None]) -> None:
        try:
            await waits
            await self._until_read()
        except MqttError as error:
            self.fail(error)
        except Exception as error:
            self.gateway.log.exception("a request failed and its client was closed", error=error)
            end(self, Cause.BROKER)
        self._task = None
        self._busy = self._over_quota = False
        if self.ended:
            return
        waiting, self._waiting = self._waiting, None
        if waiting:
            self._resume(waiting)
        if not self._busy:
            self.release_reading("busy")

    def _resume(self, waiting: deque[Packet | MqttError]) -> None:
        last = waiting[-1]
        error = waiting.pop() if isinstance(last, MqttError) else None
        try:
            if waiting:
                self.forward(cast("Iterator[Packet]", iter(waiting)))
        except MqttError as raised:
            self.fail(raised)
        if error is not None and not self.ended:
            if self._busy:
                self._keep([cast("MqttError", error)])
            else:
                self.fail(cast("MqttError", error))

    def _open(self, packet: Packet, rest: Iterator[Packet]) -> None:
        self.connection.see(Sender.CLIENT, packet)
        # The first packet is a CONNECT, or would have been refused; what follows it is kept.
        self.connect = cast("Connect", packet)
        self.version = self.connect.version
        self.takes = Limits.said_in(self.connect.properties)
        self.suspend(opening.open_connection(self), rest)

    def _wait_for_quota(self, packet: Publish, rest: Iterator[Packet]) -> None:
        """Hold a message that the broker would not take now.

        A client of MQTT 5 was told how many it may send; one of 3.1.1 knows no such limit.
        """
        if len(self.unacked) >= self.quota and self.version == V5:
            raise ReceiveMaximumError(
                f"PUBLISH: more than {self.quota} messages are not acknowledged"
            )
        freed = self.quota_freed = self.gateway.loop.create_future()
        self._busy = self._over_quota = True
        self._kept_bytes = 0
        self._waiting = deque([packet])
        self._start(_wait(freed))
        # Reading goes on: only the client's own acknowledgements can free the quota.
        self._keep(list(rest))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def _wait(future: asyncio.Future[None]) -> None:
    await future
