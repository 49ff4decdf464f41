"""Publish lanes: a few connections of the gateway's own that carry clients' QoS 0 publications.

    client a ─┐  one turn of the loop            ┌─▶ PINGRESP: the broker has dealt with it
    client b ─┼─▶ waiting ──▶ one write ──▶ broker
    client c ─┘      ▲            └─▶ lost: counted, reopened with backoff
                     └── the broker reads too slowly: those who publish now are not read

Rules that hold here:
- Whoever hands a message over has authorised and stamped it, and has made sure that a broker
  takes it: one client's message must not end a lane for the others (`is_ordinary`). A client
  whose identifier some broker refuses has no lane: messages may name it (`may_share`).
- A client is pinned to a lane, so that its messages keep their order (MQTT5 4.6).
- A broker deals with the packets of a connection in their order: an answer to a PINGREQ confirms
  all that was written before it. Who must not overtake its own messages waits for that.
- What was written and not confirmed when a lane breaks counts as lost: QoS 0 is sent at most
  once (MQTT5 4.3.1). What was not written yet waits for the lane to be reopened, and its
  publishers with it; after a while they are told that the broker is gone.
- A lane that the broker reads too slowly holds back those of its clients that publish. What those
  leave behind that go meanwhile is bounded: who comes and goes must not fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final, Protocol, cast
from zlib import crc32

from penstock.gateway.broker import BrokerAddress, may_share
from penstock.gateway.publishing.own_connection import PING, OwnConnection
from penstock.gateway.publishing.peers import Peers
from penstock.mqtt import MqttError, Packet, PeerLimits, Pingresp
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.telemetry import get_logger, metrics

WAITS: Final = "lane"
"""Why a client is not read while its lane has no room."""
HIGH_WATER: Final = 262_144
"""So much may be written and not taken by the broker before a lane's publishers wait."""
LEFT_BEHIND: Final = 16_777_216
"""So much of clients that are gone waits for a lane at most."""
_PING_SECONDS: Final = 0.02
_log = get_logger("gateway")

_OPEN = metrics.gauge("penstock_gateway_lanes", "Publish lanes that are open now.").plain
_BROKEN = metrics.counter(
    "penstock_gateway_lanes_lost", "How often an open publish lane was lost."
).plain
_LOST = metrics.counter(
    "penstock_gateway_lane_messages_lost",
    "Messages of QoS 0 that were under way on a publish lane when it was lost, or that waited for "
    "one when their client was closed.",
).plain
_HELD = metrics.counter(
    "penstock_gateway_lane_waits",
    "How often a client that published had to wait for its publish lane.",
).plain


class LaneClient(Protocol):
    """A client whose publications go over a lane."""

    lane_mark: int
    """The write that its last message goes with; 0: all of them are confirmed."""

    def hold_reading(self, reason: str) -> None:
        """Stop reading from the client."""

    def release_reading(self, reason: str) -> None:
        """Read again where no other reason is left."""

    def lose_broker(self) -> None:
        """End the connection: its messages cannot be passed on."""


class Lane(OwnConnection):
    """One connection to the broker that many clients publish over."""

    purpose = "lane"

    def __init__(self, broker: BrokerAddress) -> None:
        super().__init__(broker)
        self.confirmed = 0
        """The last write that the broker has dealt with, or that is lost."""
        self.largest = PACKET_SIZE_LIMIT
        self.retains = True
        """Whether the broker takes retained messages."""
        self._write = 1
        """The number of the next write."""
        self._waiting: dict[LaneClient, list[bytes]] = {}
        self._scheduled = False
        self._blocked = False
        self._held: set[LaneClient] = set()
        self._left_behind = 0
        """How many bytes wait of clients that are gone."""
        self._unasked = 0
        """How many messages were written behind the last PINGREQ."""
        self._asked: deque[tuple[int, int]] = deque()
        """For each PINGREQ: the last write before it, and how many messages it confirms."""
        self._asked_at = 0.0
        self._waiters: list[tuple[int, Callable[[], None]]] = []
        self._leaving: dict[str, int] = {}
        self._grace: asyncio.TimerHandle | None = None

    # --- what clients hand over ---

    def write(self, client: LaneClient, packets: list[bytes]) -> None:
        """Take messages of a client, which are written before this turn of the loop is over."""
        waiting = self._waiting
        kept = waiting.get(client)
        if kept is None:
            waiting[client] = packets
        else:
            kept += packets
        client.lane_mark = self._write
        if self._blocked:
            if client not in self._held:
                _HELD.inc()
                self._held.add(client)
                client.hold_reading(WAITS)
            if not self.open:
                self._await_reopening()
        elif not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def recall(self, client: LaneClient) -> None:
        """Take back what was not written yet of a client that may not publish any more."""
        packets = self._waiting.pop(client, None)
        if packets:
            _LOST.inc(len(packets))

    def forget(self, client: LaneClient) -> None:
        """Take note that a client has ended; what it handed over is still written, or bounded."""
        self._held.discard(client)
        if not self._blocked or client not in self._waiting:
            return
        self._left_behind += sum(map(len, self._waiting[client]))
        if self._left_behind > LEFT_BEHIND:
            self._left_behind -= sum(map(len, self._waiting[client]))
            self.recall(client)

    def when_settled(self, mark: int, done: Callable[[], None]) -> None:
        """Call back when the broker has dealt with a write, or it is lost."""
        if mark <= self.confirmed:
            done()
            return
        self._waiters.append((mark, done))
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    async def settle(self, mark: int) -> None:
        """Wait until the broker has dealt with a write, or it is lost."""
        if mark > self.confirmed:
            done: asyncio.Future[None] = self.loop.create_future()
            self.when_settled(mark, partial(_wake, done))
            await done

    def leave(self, client_id: str, mark: int, done: Callable[[], None]) -> None:
        """Call back when the messages of a connection that has ended are dealt with."""
        self._leaving[client_id] = mark

        def settled() -> None:
            if self._leaving.get(client_id) == mark:
                del self._leaving[client_id]
            done()

        self.when_settled(mark, settled)

    async def settle_earlier(self, client_id: str) -> None:
        """Wait for the messages of an earlier connection of this client identifier."""
        await self.settle(self._leaving.get(client_id, 0))

    def when_settled_earlier(self, client_id: str, done: Callable[[], None]) -> None:
        """Call back when the messages of earlier connections of a client are dealt with."""
        self.when_settled(self._leaving.get(client_id, 0), done)

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=HIGH_WATER)

    def begin(self) -> None:
        """Take note of the broker's limits, and go on with what waits."""
        self.largest = PeerLimits.said_in(self.granted).maximum_packet_size
        self.retains = self.granted.retain_available != 0
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        _OPEN.inc()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Let those wait who publish now."""
        self._blocked = True

    def resume_writing(self) -> None:
        """Go on with what waits, and read those that publish again."""
        if not self.open:
            return
        self._blocked = False
        self._flush()
        if not self._blocked:
            held, self._held = self._held, set()
            for client in held:
                client.release_reading(WAITS)

    def lose(self) -> None:
        """Count what was under way; what was not written yet waits for the lane to be reopened."""
        self._blocked = True
        _OPEN.dec()
        _BROKEN.inc()
        lost = self._unasked + sum(count for _, count in self._asked)
        self._unasked = 0
        self._asked.clear()
        if lost:
            _LOST.inc(lost)
        _log.warning("a publish lane was lost", count=lost)
        self._confirm(self._write - 1)
        self._await_reopening()

    def take(self, packet: Packet) -> None:
        """Deal with a packet of the broker: it confirms, and says nothing else here."""
        if not isinstance(packet, Pingresp) or not self._asked:
            raise MqttError(f"{packet.packet_type.name} is not expected on a publish lane")
        self._confirm(self._asked.popleft()[0])

    def ping(self) -> bool:
        """Send a PINGREQ unless one is under way; say whether one is."""
        if self._asked:
            return True
        self._flush(ask=True)
        return False

    async def finish(self) -> None:
        """Wait until all that was handed over is dealt with, and leave in order."""
        await self.settle(self._write if self._waiting else self._write - 1)
        if self.open:
            _OPEN.dec()
            self.close()

    # --- inside ---

    def _flush(self, *, ask: bool = False) -> None:
        """Write what waits, all of it at once."""
        self._scheduled = False
        if self._blocked or self.transport is None:
            return
        out: list[bytes] = []
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._left_behind = 0
            out = list(chain.from_iterable(waiting.values()))
            self._unasked += len(out)
        now = self.loop.time()
        if ask or self._is_asked_for() or (out and now - self._asked_at >= _PING_SECONDS):
            self._asked.append((self._write, self._unasked))
            self._unasked = 0
            self._asked_at = now
            out.append(PING)
        if out:
            self._write += 1
            self.transport.write(b"".join(out))

    def _is_asked_for(self) -> bool:
        """Say whether somebody waits for a write that no PINGREQ has followed yet."""
        if not self._waiters:
            return False
        asked = self._asked[-1][0] if self._asked else self.confirmed
        return any(mark > asked for mark, _ in self._waiters)

    def _await_reopening(self) -> None:
        if self._grace is None:
            self._grace = self.loop.call_later(self.broker.timeout, self._give_up)

    def _confirm(self, write: int) -> None:
        self.confirmed = write
        if self._waiters:
            due = [done for mark, done in self._waiters if mark <= write]
            self._waiters = [it for it in self._waiters if it[0] > write]
            for done in due:
                done()

    def _give_up(self) -> None:
        """Let nobody wait any longer for a lane that cannot be reopened."""
        self._grace = None
        lost = sum(map(len, self._waiting.values()))
        self._waiting.clear()
        self._left_behind = 0
        if lost:
            _LOST.inc(lost)
            _log.warning("messages waited for a publish lane in vain", count=lost)
        self._confirm(self._write)
        self._write += 1
        held, self._held = self._held, set()
        for client in held:
            client.lose_broker()


class Lanes:
    """The publish lanes of one gateway; none where each client publishes by itself."""

    def __init__(self, broker: BrokerAddress, count: int, peers: Peers | None = None) -> None:
        self._lanes = [Lane(broker) for _ in range(count)]
        self._peers = peers if count else None
        self._timeout = broker.timeout if count else 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """Whether takeovers at other gateways are known here: else no client may use a lane."""
        return self._peers is None or self._peers.ready.is_set()

    def of(self, client_id: str) -> Lane | None:
        """Return the lane that a client is pinned to; None: it publishes by itself."""
        if not self._lanes or not may_share(client_id):
            return None
        return self._lanes[crc32(client_id.encode()) % len(self._lanes)]

    async def take_over(self, client_id: str, holder: str) -> None:
        """Let nothing pass later that was published under a client identifier before, anywhere."""
        lane = self.of(client_id)
        if lane is not None:
            # A broker that has stopped reading would hold up whoever comes, as long as it likes.
            async with asyncio.timeout(self._timeout):
                await lane.settle_earlier(client_id)
            if self._peers is not None:
                await self._peers.take_over(client_id, holder)

    async def start(self) -> None:
        """Open the lanes, and keep them open; a broker that is away is tried again later."""
        own = [*self._lanes, *self._connected()]
        self._tasks = [asyncio.create_task(it.run()) for it in own]
        await asyncio.gather(*(it.tried.wait() for it in own))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                for peers in self._connected():
                    if peers.open:
                        await peers.decided.wait()

    def tick(self, seconds: int) -> None:
        """Look after the lanes, once a second."""
        for it in (*self._lanes, *self._connected()):
            it.tick(seconds)

    async def finish(self) -> None:
        """Wait until all that clients handed over is dealt with."""
        await asyncio.gather(*(lane.finish() for lane in self._lanes))
        for peers in self._connected():
            peers.leave()

    def stop(self) -> None:
        """Keep the lanes open no longer."""
        for task in self._tasks:
            task.cancel()

    def _connected(self) -> list[Peers]:
        return [self._peers] if self._peers is not None else []


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
