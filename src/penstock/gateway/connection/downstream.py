"""The client's side of a connection: what clients send, and the way of a publication.

    client ──▶ data_received ─┬─ plain ──▶ `_pass_plain`, as bytes ──▶ lane or broker
                              └▶ forward ─┬─ known write ──▶ header and stamp ──▶ lane or broker
                                          ├─ new topic, command, purpose ──▶ `admission`
                                          ├─ acknowledgement ──▶ broker
                                          └─ anything else ──▶ `_handle` ──▶ handlers

Rules that hold here:
- What passes as bytes passes as the loop would pass it: in doubt a packet is not plain.
- Packets of one client are dealt with in their order. What must wait (for the broker, the
  store, a password check) suspends this client alone (`Backlog`).
- Reading the state of the rules and acting on it is one synchronous step.
- A message goes to the broker only with the stamp of its publisher; a decision that was
  remembered is forgotten with every change of the rules (`generation`).
- A message of QoS 0 that any broker takes goes over the client's lane, if it has one; whatever
  else it publishes or asks for follows on its own connection when the broker has dealt with that.
- While the definitions are stale no decision is remembered, so every message takes the
  way that denies it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

from penstock.clock import boot_clock
from penstock.gateway.broker import HEADROOM, SHARED_NAME_BYTES, is_ordinary, strip
from penstock.gateway.connection.admission import Admission
from penstock.gateway.connection.client_connection import ClientConnection, Registry
from penstock.gateway.connection.context import Cause, ConnectionContext
from penstock.gateway.connection.handshake import Handshake
from penstock.gateway.connection.subscription_requests import SubscriptionRequests
from penstock.gateway.connection.upstream import Upstream
from penstock.gateway.limits import Arrival
from penstock.gateway.publishing.lanes import Lane
from penstock.gateway.recording.topic_mapping import MAX_VALUE
from penstock.mqtt import (
    NO_PROPERTIES,
    NO_PUBLISH_PROPERTIES,
    PINGRESP,
    PUBACK_SIZE,
    V5,
    Connect,
    Disconnect,
    MqttError,
    Packet,
    Pingreq,
    Properties,
    ProtocolError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    ReceiveMaximumError,
    Sender,
    Subscribe,
    Unsubscribe,
    encode_head,
    encode_puback,
    encode_pubcomp,
    find_plain,
    find_puback,
)

_PINGRESP = PINGRESP.encode(V5)
_ACKS = (Puback, Pubrec, Pubcomp)
_WITHOUT_BROKER = (Pingreq, Disconnect)
"""What a client may send that has no connection to the broker."""
_NOTHING_KNOWN: frozenset[str] = frozenset()
_EARLY_BYTES = 65_536
"""After so much behind its CONNECT a client is not read any more until it is let in."""
_LONG_PROPERTIES = 4_096
_BESIDE = 4_096 + _LONG_PROPERTIES + HEADROOM + SHARED_NAME_BYTES
"""What a message on a lane has at most beside its payload and its stamp."""
_TOO_LONG = "the payload is too long for the event log"


class Handlers(NamedTuple):
    """What deals with packets that are not just passed on."""

    admission: Admission
    handshake: Handshake
    subscriptions: SubscriptionRequests


class Downstream(ClientConnection, asyncio.Protocol):
    """What one client sends."""

    __slots__ = ("_handlers",)

    upstream: Upstream | None

    def __init__(
        self, context: ConnectionContext, registry: Registry, arrival: Arrival, handlers: Handlers
    ) -> None:
        super().__init__(context, registry, arrival)
        self._handlers = handlers

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, unless the gateway ends."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.context.limits.queue)
        if not self.registry.arrive(self):
            self.ended = True
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Deal with what the client sent."""
        self.heard = True
        self.context.counters.bytes_in += len(data)
        reader = self.reader
        backlog = self.backlog
        at = self._pass_plain(data)
        if at == len(data):
            return
        reader.feed(data[at:] if at else data)
        if not self.open:
            self._hear_stranger()
            return
        try:
            batch = reader.packets()
            if backlog.busy:
                backlog.keep(batch)
            elif batch:
                self.forward(iter(batch))
            if reader.refused:
                reader.packets()
        except MqttError as error:
            if backlog.busy:
                backlog.keep([error])
            else:
                self.fail(error)

    def pause_writing(self) -> None:
        """Take note that the client reads too slowly, and let the broker wait for it."""
        self.blocked = True
        if self.upstream is not None and self.context.limits.pause_broker:
            self.upstream.pause("client")

    def resume_writing(self) -> None:
        """Take note that the client has caught up."""
        self.catch_up()
        if self.upstream is not None:
            self.upstream.resume("client")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection to the broker as the client ended this one: without a word."""
        del exc
        self.forget()
        self.end(Cause.LOST)

    # --- the way of a publication ---

    # One loop on purpose, like `forward`.
    def _pass_plain(self, data: bytes) -> int:  # noqa: C901, PLR0912
        """Pass plain packets on as bytes, as `forward` would; return where the first other begins.

        Plain are messages of QoS 0 and 1 without properties to topics that are known and feed no
        stream, and bare acknowledgements.
        """
        upstream, lane, context = self.upstream, self.lane, self.context
        if not self.open or self.ended or self.backlog.busy or self.reader.held:
            return 0
        acks = upstream is not None and upstream.window is None
        end = len(data)
        if end == PUBACK_SIZE:
            # Alone, as most come: it needs no rules.
            if acks and find_puback(data, 0):
                cast("Upstream", upstream).write([data])
                return end
            return 0
        rules = context.rules
        if (
            not self.writes
            or self.generation != rules.generation
            or boot_clock() > rules.fresh_until
            or (lane is None and (self.lane_mark or upstream is None))
        ):
            return 0
        stamped, fed = self.stamped, context.recorder.mappings.known
        limit = self.reader.maximum_packet_size
        room = limit if lane is None else lane.largest - _BESIDE - len(stamped)
        unlisted = 1 if self.version == V5 else 0
        laned: list[bytes] = []
        out: list[bytes] = []
        at = passed = 0
        while at < end:
            parts = find_plain(data, at, self.version)
            if parts is None:
                if not acks or not find_puback(data, at):
                    break
                out.append(data[at : at + PUBACK_SIZE])
                at += PUBACK_SIZE
                continue
            start, middle, body, begin, stop = parts
            topic = context.topics.get(data[start:middle])
            if (
                topic not in self.writes
                or begin - body != unlisted
                or stop - begin > room
                or stop - at > limit
                or data[at] & 1
                or (fed is not None and fed.get(topic, True))
            ):
                break
            if middle < body:
                packet_id = data[middle] << 8 | data[middle + 1]
                if (
                    lane is not None
                    or len(cast("Upstream", upstream).unacked) >= self.quota
                    or packet_id in cast("Upstream", upstream).requests
                ):
                    break
                cast("Upstream", upstream).unacked.add(packet_id)
            head = encode_head(data[at], body - start + len(stamped) + stop - begin)
            packet = b"".join((head, data[start:body], stamped, data[begin:stop]))
            if lane is None:
                out.append(packet)
            else:
                laned.append(packet)
            passed += 1
            at = stop
        context.counters.messages_in += passed
        if laned:
            cast("Lane", lane).write(self, laned)
        if out:
            cast("Upstream", upstream).write(out)
        return at

    # One loop on purpose: on the way of every message a call would cost more than it tidies.
    def forward(self, packets: Iterator[Packet]) -> None:  # noqa: C901, PLR0911, PLR0912, PLR0915
        """Pass packets on to the broker, in one step up to the first that must wait."""
        upstream = self.upstream
        own = cast("Upstream", upstream)
        context = self.context
        rules = context.rules
        if self.generation != rules.generation:
            self.renew()
        known: set[str] | frozenset[str] = self.writes
        if boot_clock() > rules.fresh_until:
            known = _NOTHING_KNOWN
        stamp = self.stamp
        recorder = context.recorder
        fed = recorder.mappings.known
        lane = self.lane
        if lane is None:
            if self.lane_mark or upstream is None:
                self.backlog.suspend(self._take_own(), packets)
                return
            room = 0
        else:
            room = self._room(lane)
        laned: list[bytes] = []
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
                    if (
                        fed is not None
                        and len(packet.payload) > MAX_VALUE
                        and recorder.mappings.of(packet.topic)
                    ):
                        self.deny(packet, "size", _TOO_LONG, ReasonCode.QUOTA_EXCEEDED)
                        if self.ended or self.backlog.is_unheard(packets):
                            return
                        continue
                    if (
                        lane is not None
                        and (
                            packet.first & 6
                            or packet.topic not in known
                            or len(packet.payload) > room
                            or properties is not NO_PUBLISH_PROPERTIES
                            or packet.first & 1
                        )
                        and not self._fits(lane, packet, room)
                    ):
                        self.leave_lane()
                        if laned or self.is_unsettled() or upstream is None:
                            self.backlog.suspend(self._take_own(), chain((packet,), packets))
                            return
                        self.lane_mark = 0
                        lane = None
                    if packet.first & 6 and packet.packet_id not in own.unacked:
                        if len(own.unacked) >= self.quota or packet.packet_id in own.requests:
                            self._wait_for_quota(packet, packets)
                            return
                        own.unacked.add(packet.packet_id)
                    if packet.topic not in known or not plain:
                        outcome = self._handlers.admission.admit(self, packet)
                        if outcome is None:
                            self.abandon(packet)
                            if self.ended or self.backlog.is_unheard(packets):
                                return
                            continue
                        if not isinstance(outcome, bytes):
                            self.backlog.suspend(outcome, packets)
                            return
                        listed = properties.kept + outcome
                        told = listed + self.origin(packet) if packet.first & 1 else listed
                        prepared: tuple[Publish, bytes] | None = packet, told
                        if rules.vouches:
                            prepared = self._handlers.admission.prepare(self, packet, told)
                        if prepared is None:
                            self.abandon(packet)
                            if self.ended or self.backlog.is_unheard(packets):
                                return
                            continue
                        leaving, told = prepared
                    else:
                        leaving = packet
                        told = listed + self.origin(packet) if packet.first & 1 else listed
                    made = leaving.to_v5(told)
                    if lane is None:
                        out.append(made)
                    else:
                        laned.append(made)
                    passed += 1
                    if fed is not None and fed.get(packet.topic, True):
                        restricted = len(listed) > len(properties.kept) + len(stamp)
                        waits = recorder.record(
                            packet,
                            self.session.principal,
                            self.deferred_acks,
                            restricted=restricted,
                        )
                        if waits is not None:
                            self.backlog.suspend(waits, packets)
                            return
                elif upstream is None and not isinstance(packet, _WITHOUT_BROKER):
                    self.backlog.suspend(self._take_own(), chain((packet,), packets))
                    return
                elif (
                    type(packet) is Puback
                    and packet.properties is NO_PROPERTIES
                    and not packet.reason
                ):
                    out.append(encode_puback(packet.packet_id))
                    if own.window is not None:
                        own.settle(own.window, packet)
                elif isinstance(packet, _ACKS):
                    out.append(packet.encode(V5))
                    if own.window is not None:
                        own.settle(own.window, packet)
                elif type(packet) is Pingreq:
                    # The gateway keeps its own connection to the broker alive.
                    self.transport.write(_PINGRESP)
                    if self.backlog.is_unheard(packets):
                        return
                else:
                    if lane is not None and laned:
                        lane.write(self, laned)
                        laned = []
                    if out:
                        own.write(out)
                        out = []
                    waits = self._handle(packet)
                    if waits is not None:
                        self.backlog.suspend(waits, packets)
                        return
                    if self.ended or self.backlog.is_unheard(packets):
                        return
        finally:
            # Whatever stopped the loop: what came before it goes to the broker first.
            context.counters.messages_in += passed
            if laned and lane is not None and not self.ended:
                lane.write(self, laned)
            if out:
                own.write(out)

    def _room(self, lane: Lane) -> int:
        """Return how long a payload may be that goes over a lane."""
        return lane.largest - _BESIDE - len(self.stamp)

    def _fits(self, lane: Lane, packet: Publish, room: int) -> bool:
        """Say whether a message may go over a lane: no broker may end it over this message."""
        properties = packet.properties
        return (
            not packet.first & 6
            and (packet.topic in self.writes or is_ordinary(packet.topic))
            and len(packet.payload) <= room
            and not self.context.rules.credentials.concerns(packet.topic)
            and (lane.retains or not packet.retain)
            and properties.acceptable
            and properties.response_topic is None
            and len(properties.raw) <= _LONG_PROPERTIES
            and (not properties.payload_format or _is_text(packet.payload))
        )

    def _wait_for_quota(self, packet: Publish, rest: Iterator[Packet]) -> None:
        """Hold a message that the broker would not take now."""
        if len(self.unacked) >= self.quota and self.version == V5:
            # MQTT5 3.3.4: the client was told how many it may send; 3.1.1 knows no such limit.
            raise ReceiveMaximumError(
                f"PUBLISH: more than {self.quota} messages are not acknowledged"
            )
        self.backlog.wait_for_quota(packet, rest)

    # --- what clients send beside messages and their acknowledgements ---

    def _hear_stranger(self) -> None:
        """Deal with what a client sent that is not let in: its CONNECT; the rest stays bytes."""
        reader = self.reader
        if self.ended:
            return
        try:
            packet = None if self.version else reader.first_packet()
        except MqttError as error:
            self.fail(error)
            return
        if packet is not None:
            # MQTT5 3.1: the first packet is a CONNECT, or it is refused.
            self.connection.see(Sender.CLIENT, packet)
            self.take_connect(cast("Connect", packet))
            self.backlog.suspend(self._open(), iter(()))
            # Still read, so that it is noticed where the client does not wait for its answer.
            self.release_reading("busy")
        if self.version and reader.buffered > _EARLY_BYTES:
            self.hold_reading("busy")
        self.context.arrivals.hold(self.arrival, reader.buffered)

    async def _open(self) -> None:
        """Open the connection; then deal with what the client sent after its CONNECT."""
        await self._handlers.handshake.open(self)
        reader = self.reader
        if self.ended or not self.open or not reader.buffered:
            return
        try:
            self.backlog.keep(reader.packets())
            if reader.refused:
                reader.packets()
        except MqttError as error:
            self.backlog.keep([error])

    def _handle(self, packet: Packet) -> Coroutine[Any, Any, None] | None:
        """Deal with a request; return what must be awaited before the next packet."""
        self.connection.see(Sender.CLIENT, packet)
        requests = self._handlers.subscriptions
        match packet:
            case Pubrel():
                if self.completes_refused(packet.packet_id):
                    self.send(encode_pubcomp(packet.packet_id))
                else:
                    self.broker().write([packet.encode(V5)])
            case Subscribe():
                requests.check_count(self, len(packet.subscriptions))
                return self._ask(partial(requests.subscribe, self, packet))
            case Unsubscribe():
                requests.check_count(self, len(packet.filters))
                return self._ask(partial(requests.unsubscribe, self, packet))
            case Disconnect():
                self._leave(packet)
        return None

    async def choose_way(self, packet: Publish) -> bool:
        """Leave the lane where a message does not fit it any more; say whether it can go on."""
        lane = self.lane
        if lane is not None and not self._fits(lane, packet, self._room(lane)):
            self.leave_lane()
        if self.lane is None and (self.lane_mark or self.upstream is None):
            await self._take_own()
        return not self.ended

    async def _take_own(self) -> None:
        """Go on on the client's own connection, behind what it published over its lane."""
        await self.settle_lane()
        if self.upstream is None:
            await self._handlers.handshake.open_broker(self)

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Carry a request out when the broker has dealt with what was published before it."""
        await self.settle_lane()
        await request()

    def _leave(self, packet: Disconnect) -> None:
        """Tell the broker in the client's words that it leaves."""
        said = packet.properties
        if said.session_expiry and not self.session.expiry:
            # MQTT5 3.14.2.2.2
            text = "DISCONNECT: a session that ends with its connection cannot be kept"
            raise ProtocolError(text)
        expiry = said.session_expiry
        if expiry is not None:
            expiry = self.session.expiry = min(expiry, self.context.limits.session_expiry)
        farewell = Disconnect(
            packet.reason, Properties(session_expiry=expiry, user=strip(said.user))
        )
        self.end(Cause.CLIENT, farewell=farewell)


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
