"""One client's connection: its state, and what the handlers of its packets can do to it.

    Downstream (what the client sends) ─┐                      ┌─▶ the client's transport
    handlers (CONNECT, SUBSCRIBE, …) ───┼─▶ ClientConnection ──┼─▶ BrokerConnection
    Upstream (what the broker sends) ───┘                      └─▶ Registry: who is connected

Rules that hold here:
- A connection ends once; the first cause counts.
- A will is the broker's to publish, unless policies or detection look at its topic: then
  it is judged and sent from here (`Wills`). Where the broker has it, it is told an ordinary
  DISCONNECT, which deletes the will (MQTT5 3.1.2.5, 3.14.4).
- What was already handed to a transport is still sent, but a client that does not read
  cannot keep its connection open: after a grace the transport is cut off.
- Publications of QoS 0 take a publish lane, all others the client's own connection. No message
  overtakes another on the way, nor a will: who changes from one to the other waits until the
  broker has dealt with what was sent. A client that publishes otherwise, or has subscribed with
  No Local, which only the broker keeps, stays on its own connection for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Protocol, cast

from penstock.gateway.broker import Offer, is_ordinary
from penstock.gateway.connection.backlog import Backlog
from penstock.gateway.connection.broker_connection import BrokerConnection
from penstock.gateway.connection.context import (
    FAREWELL_SECONDS,
    Cause,
    ClientReplies,
    ConnectionContext,
    DeferredAcks,
    encode_refusal,
    make_disconnect,
)
from penstock.gateway.limits import TICK_SECONDS, Arrival
from penstock.gateway.publishing.lanes import Lane
from penstock.gateway.session import Session
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Connection,
    ConnectionState,
    Disconnect,
    MqttError,
    Packet,
    PeerLimits,
    Properties,
    Publish,
    Reader,
    ReasonCode,
    Sender,
    encode_varint,
)
from penstock.mqtt.connection import TopicAliases

_WRITES_LIMIT = 2_048
_UNREAD_QUEUES = 2
_QOS = 0x06
_OWN_TICKS = 5
_OWN_TICKS_LIMIT = 3_600
_RETURN_SECONDS = 1.0
_NO_ALIASES = TopicAliases(0)
_NOTHING: frozenset[str] = frozenset()
_OVER = frozenset({Cause.TAKEOVER, Cause.REVOKED})
"""Whoever ends so may publish nothing more, whatever it has handed over."""


class Registry(Protocol):
    """Where connections are known, and what they tell it."""

    def arrive(self, client: ClientConnection) -> bool:
        """Take note of a new connection; False where nobody is let in any more."""
        ...

    def leave(self, client: ClientConnection) -> None:
        """Take note that a connection is gone."""

    def release(self, client: ClientConnection) -> None:
        """Take note that a connection has ended and has no identifier any more."""

    def await_definitions(self, client: ClientConnection) -> None:
        """Go on with what the broker sends as soon as the definitions are fresh."""

    def await_leader(self, client: ClientConnection) -> None:
        """Go on with what the broker sends as soon as the situations are known."""


class ClientConnection(ClientReplies):
    """One client: who it is, what it may, and what it waits for."""

    __slots__ = (
        "_budget",
        "_farewell",
        "_holds",
        "_idle",
        "_idle_limit",
        "_own_ticks",
        "_own_wait",
        "_stalled",
        "aliases",
        "arrival",
        "backlog",
        "blocked",
        "connect",
        "connection",
        "deferred_acks",
        "ended",
        "generation",
        "heard",
        "lane",
        "lane_mark",
        "open",
        "peer",
        "pinned",
        "quota",
        "reader",
        "registry",
        "session",
        "stamp",
        "stamped",
        "upstream",
        "writes",
    )

    session: Session
    connect: Connect

    def __init__(self, context: ConnectionContext, registry: Registry, arrival: Arrival) -> None:
        super().__init__(context)
        self.registry = registry
        self.arrival = arrival
        self.reader = Reader(
            Sender.CLIENT,
            maximum_packet_size=context.limits.connect,
            topics=context.topics,
            properties=context.client_properties,
        )
        self.connection = Connection()
        self.upstream: BrokerConnection | None = None
        self.peer = arrival.address
        self.open = False
        self.ended = False
        self.heard = True
        self.blocked = False
        """Whether the client reads too slowly."""
        self.generation = -1
        """The generation of the rules that `writes` and `stamp` are of."""
        self.stamp = b""
        self.stamped = b""
        """The stamp behind its length: all the properties of a message that came without any."""
        self.aliases = _NO_ALIASES
        self.writes: set[str] = set()
        """The topics that this client may write to, whatever the message."""
        self.quota = 0
        self.pinned: Lane | None = None
        """The publish lane of this client; None: there is none."""
        self.lane: Lane | None = None
        """The lane that publications of QoS 0 take now; None: its own connection."""
        self.lane_mark = 0
        self._own_ticks = 0
        self._own_wait = _OWN_TICKS
        self._budget = 0.0
        self._idle = 0
        self._idle_limit = context.limits.connect_ticks
        self._stalled = 0
        self._farewell: asyncio.TimerHandle | None = None
        self._holds = _NOTHING
        self.backlog = Backlog(self, context.loop, context.limits.queue)
        self.deferred_acks = DeferredAcks(self)

    @abstractmethod
    def forward(self, packets: Iterator[Packet]) -> None:
        """Deal with packets of the client, in one step up to the first that must wait."""

    @abstractmethod
    async def choose_way(self, packet: Publish) -> bool:
        """Leave the lane where a message does not fit it any more; say whether it can go on."""
        ...

    # --- opening ---

    def take_connect(self, connect: Connect) -> None:
        """Take what the client said of itself."""
        self.connect = connect
        self.context.arrivals.connected(self.arrival)
        self.reader.maximum_packet_size = self.context.limits.packet
        self.version = connect.version
        self.takes = PeerLimits.said_in(connect.properties)
        self.problems = connect.properties.request_problem_information != 0

    def identify(self, session: Session) -> None:
        """Take note of who the client is."""
        self.session = session

    def attach(self, upstream: BrokerConnection) -> None:
        """Take the connection to the broker that belongs to this client."""
        self.upstream = upstream

    def let_in(self, told: Connack, data: bytes, offer: Offer, receive_maximum: int) -> None:
        """Let the client in: from this step on it is open, and told so."""
        self.quota = min(receive_maximum, offer.receive_maximum)
        if self.version == V5:
            self.aliases = TopicAliases(offer.topic_aliases)
        self._idle_limit = self.context.limits.idle_ticks(offer.keep_alive)
        self.context.arrivals.established(self.arrival)
        self.open = self.connection.see(Sender.SERVER, told) is ConnectionState.CONNECTED
        counters = self.context.counters
        counters.connections += 1
        self.renew()
        self.pinned = self.context.lanes.of(self.session.client_id)
        self._take_lane()
        self.send(data)
        counters.opened("accepted")

    # --- the rules ---

    def renew(self) -> None:
        """Forget what was decided under rules that have changed."""
        rules = self.context.rules
        self.generation = rules.generation
        self.writes.clear()
        self.stamp = rules.stamp(self.session)
        self.stamped = encode_varint(len(self.stamp)) + self.stamp
        self.forget_decisions()

    def remember_write(self, topic: str) -> None:
        """Remember that every message to a topic may pass, and that every broker takes it."""
        if not is_ordinary(topic):
            return
        if len(self.writes) >= _WRITES_LIMIT:
            self.writes.clear()
        self.writes.add(topic)

    def forget_decisions(self) -> None:
        """Forget what was decided for subscriptions that have changed."""
        if self.upstream is not None:
            self.upstream.forget_decisions()

    def may_command(self) -> bool:
        """Take one from the client's bucket of commands, which fills up within a second."""
        now = time.monotonic()
        due = max(self._budget, now - 1.0) + 1.0 / self.context.limits.commands
        if due > now:
            return False
        self._budget = due
        return True

    # --- publish lanes ---

    def leave_lane(self) -> None:
        """Publish on the client's own connection from now on, for a while."""
        if self.lane is not None:
            self.lane = None
            self._own_ticks = self._own_wait
            self._own_wait = min(2 * self._own_wait, _OWN_TICKS_LIMIT)

    async def settle_lane(self) -> None:
        """Wait until the broker has dealt with what this client published over its lane."""
        mark = self.lane_mark
        if mark and self.pinned is not None:
            await self.pinned.settle(mark)
            if self.lane_mark == mark:
                self.lane_mark = 0

    def pass_on(self, packet: Publish, properties: bytes) -> None:
        """Pass a message on that was accepted, over the lane or the client's own connection."""
        made = packet.to_v5(properties)
        if self.lane is None or packet.first & _QOS:
            self.broker().write([made])
        else:
            self.lane.write(self, [made])

    def origin(self, packet: Publish) -> bytes:
        """Return what tells whose message it is, where the broker keeps it."""
        return self.context.rules.origin(self.session) if packet.retain else b""

    def is_unsettled(self) -> bool:
        """Say whether the broker may not have dealt with what this client published."""
        return self.pinned is not None and self.lane_mark > self.pinned.confirmed

    def _take_lane(self) -> None:
        lane = self.pinned
        if lane is not None and lane.open and self.context.lanes.ready:
            self.lane = None if self.session.is_no_local else lane

    def _consider_lane(self, upstream: BrokerConnection) -> None:
        """Let a client publish over its lane again that has long done nothing else."""
        if self.pinned is None or self.lane is not None:
            return
        self._own_ticks -= 1
        if self._own_ticks > 0 or upstream.unacked or self.backlog.busy or not upstream.is_quiet:
            return
        if self.pinned.open and not self.session.is_no_local:
            self.backlog.suspend(self._return_to_lane(upstream), iter(()))

    async def _return_to_lane(self, upstream: BrokerConnection) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_SECONDS):
                await upstream.settle_writes()
                self._take_lane()

    def lose_broker(self) -> None:
        """End the connection: its messages cannot be passed on."""
        self.context.counters.broker_lost()
        self.end(Cause.BROKER)

    # --- reading and writing ---

    @property
    def unacked(self) -> set[int]:
        """The messages of this client that the broker has not finished with."""
        return set() if self.upstream is None else self.upstream.unacked

    def broker(self) -> BrokerConnection:
        """Return the connection to the broker, which every client with subscriptions has."""
        return cast("BrokerConnection", self.upstream)

    def hold_reading(self, reason: str) -> None:
        """Stop reading from the client, for one of several reasons."""
        if not self._holds and not self.ended:
            self.transport.pause_reading()
        self._holds |= {reason}

    def release_reading(self, reason: str) -> None:
        """Read again where no other reason is left."""
        if reason not in self._holds:
            return
        self._holds = self._holds - {reason} or _NOTHING
        if not self._holds and not self.ended:
            self.transport.resume_reading()

    def catch_up(self) -> None:
        """Take note that the client has read what waited for it."""
        self.blocked = False
        self._stalled = 0
        self.backlog.read()

    def leaves_unread(self) -> bool:
        """Say whether the client leaves too many answers unread."""
        most = _UNREAD_QUEUES * self.context.limits.queue
        return self.blocked and not self.ended and self.transport.get_write_buffer_size() > most

    def acknowledged(self, packet_id: int) -> None:
        """Take note that the broker has finished with a message of this client."""
        self.broker().unacked.discard(packet_id)
        self.backlog.free_quota()

    def abandon(self, packet: Publish) -> None:
        """Take note that a message does not go to the broker: its identifier is free."""
        if packet.packet_id:
            self.broker().unacked.discard(packet.packet_id)

    # --- the clock ---

    def tick(self) -> None:
        """Look after the connection, once a second: end it where a side is silent or stuck."""
        if self.ended:
            return
        if self.open:
            self._idle = 0 if self.heard else self._idle + 1
            self.heard = False
            if time.time() > self.session.valid_until:
                self.end(Cause.REVOKED)
                return
        elif not self.version:
            # Until its CONNECT is whole, a client buys no time by sending byte after byte.
            self._idle += 1
        if self._idle >= self._idle_limit:
            if not self.open:
                self.context.counters.opened("timeout")
            self.end(Cause.KEEP_ALIVE)
            return
        upstream = self.upstream
        if self.blocked or (upstream is not None and upstream.waits_for_client):
            self._stalled += 1
            if self._stalled >= self.context.limits.stall_ticks:
                self.end(Cause.SLOW)
                self.transport.abort()
                return
        else:
            self._stalled = 0
        if self.open and upstream is not None:
            if upstream.tick(TICK_SECONDS):
                self._consider_lane(upstream)
            else:
                self.lose_broker()

    # --- the end ---

    def fail(self, error: MqttError) -> None:
        """End the connection because the client broke a rule."""
        self.end(Cause.PROTOCOL, error=error)

    def end(
        self, cause: Cause, *, error: MqttError | None = None, farewell: Disconnect | None = None
    ) -> None:
        """End the client's connection and the one to the broker.

        `farewell` is the DISCONNECT of the side that ended it: to be passed on.
        """
        if self.ended:
            return
        self.ended = True
        self.backlog.cancel()
        if cause is not Cause.LOST:
            self._take_leave(cause, error, farewell)
        self.connection.close()
        counters = self.context.counters
        counters.ended(cause, error, established=self.open)
        if self.open:
            counters.connections -= 1
        self._leave_lane_for_good(cause)
        if self.pinned is not None and self.is_unsettled():
            # A will must not overtake what was published before it.
            self.pinned.leave(
                self.session.client_id,
                self.lane_mark,
                partial(self._leave_broker, cause, farewell),
            )
        else:
            self._leave_broker(cause, farewell)
        self.registry.release(self)

    def _leave_lane_for_good(self, cause: Cause) -> None:
        if self.pinned is not None:
            if cause in _OVER:
                self.pinned.recall(self)
            self.pinned.forget(self)

    def _leave_broker(self, cause: Cause, farewell: Disconnect | None) -> None:
        """End the connection to the broker, and deal with the will."""
        said = (farewell or Disconnect()) if cause is Cause.CLIENT else None
        instead = None
        if cause is Cause.REVOKED:
            instead = self._revoke()
        elif said is None or said.reason == ReasonCode.DISCONNECT_WITH_WILL:
            instead = self._instead_of_will()
        if hasattr(self, "session"):
            if not self.open and self.session.resumable and not self.session.counted:
                # It never came to be; what nobody counts, the broker must not keep.
                self.session.expiry = 0
                instead = Disconnect(properties=Properties(session_expiry=0))
            self.context.wills.forget(self.session)
        if self.upstream is not None:
            self.upstream.close(instead or said)

    def kick(self) -> None:
        """End the connection on an operator's word: nothing more of it passes, either."""
        if self.pinned is not None and not self.ended:
            self.pinned.recall(self)
        self.end(Cause.DENIED, farewell=Disconnect(int(ReasonCode.ADMINISTRATIVE_ACTION)))

    def forget(self) -> None:
        """Take note that the transport is gone; what was sent goes now, not when garbage does."""
        self.reader.discard()
        if self._farewell is not None:
            self._farewell.cancel()
        self.registry.leave(self)
        self.context.arrivals.leave(self.arrival)

    def _take_leave(
        self, cause: Cause, error: MqttError | None, farewell: Disconnect | None
    ) -> None:
        words = b""
        if self.open:
            if cause is not Cause.CLIENT and self.version == V5:
                largest = self.takes.maximum_packet_size
                told = farewell or make_disconnect(
                    cause, error, texts=self.problems, largest=largest
                )
                words = told.encode(V5)
        elif error is not None:
            self.context.counters.opened("malformed")
            words = encode_refusal(self.reader.version, error)
        if words:
            self.send(words)
        self.transport.close()
        self._farewell = self.context.loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def _revoke(self) -> Disconnect:
        """Return the DISCONNECT that deletes the will at the broker, and a session that is over."""
        session = self.session
        if session.will is not None:
            session.will = None
            self.context.denials.will(session, "revoked")
        expiry = None if session.expiry else 0
        return Disconnect(properties=Properties(session_expiry=expiry))

    def _instead_of_will(self) -> Disconnect | None:
        """Return the DISCONNECT that deletes a will at the broker, where it is judged here."""
        if not self.open or self.session.will is None:
            return None
        session, context = self.session, self.context
        if not context.rules.enforceable:
            context.denials.will(session)
            return Disconnect()
        given = session.will_given
        return Disconnect() if context.wills.leave(session) and given else None
