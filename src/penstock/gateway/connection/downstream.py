"""The client's side of a connection: what clients send, and the way of a publication.

    client ──▶ data_received ──▶ forward ─┬─ known write ──▶ header and stamp ──▶ broker
                                          ├─ new topic, command, purpose ──▶ `admission`
                                          ├─ acknowledgement ──▶ broker
                                          └─ anything else ──▶ `control_packets`

Rules that hold here:
- Packets of one client are dealt with in their order. What must wait (for the broker, the
  store, a password check) suspends this client alone (`Backlog`).
- Reading the state of the rules and acting on it is one synchronous step.
- A message goes to the broker only with the stamp of its publisher; a decision that was
  remembered is forgotten with every change of the rules (`generation`).
- While the definitions are stale no decision is remembered, so every message takes the
  way that denies it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from penstock.clock import boot_clock
from penstock.gateway.connection import admission, control_packets, handshake
from penstock.gateway.connection.backlog import Backlog
from penstock.gateway.connection.deferred_acks import DeferredAcks
from penstock.gateway.connection.disconnect import Cause, end
from penstock.gateway.recording.topic_mapping import MAX_VALUE
from penstock.mqtt import (
    NO_PROPERTIES,
    NO_PUBLISH_PROPERTIES,
    PINGRESP,
    V5,
    Connect,
    Connection,
    MqttError,
    Packet,
    PeerLimits,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Reader,
    Sender,
    encode_puback,
)
from penstock.mqtt.connection import TopicAliases

if TYPE_CHECKING:
    from penstock.gateway.connection.upstream import Upstream
    from penstock.gateway.service.gateway import Gateway
    from penstock.gateway.session import Session

_PINGRESP = PINGRESP.encode(V5)
_ACKS = (Puback, Pubrec, Pubcomp)
_NOTHING_KNOWN: frozenset[str] = frozenset()


class Downstream(asyncio.Protocol):
    """One client's network connection."""

    __slots__ = (
        "_holds",
        "aliases",
        "backlog",
        "blocked",
        "budget",
        "connect",
        "connection",
        "deferred_acks",
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
        "writes",
    )

    transport: asyncio.Transport
    session: Session
    connect: Connect
    takes: PeerLimits

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
        self.aliases = TopicAliases(0)
        self.writes: set[str] = set()
        self.unacked: set[int] = set()
        self.refused: set[int] = set()
        self.quota = 0
        self.budget = 0.0
        self._holds: set[str] = set()
        self.backlog = Backlog(self)
        self.deferred_acks = DeferredAcks(self)

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
        backlog = self.backlog
        reader.feed(data)
        try:
            while batch := reader.packets():
                if backlog.busy:
                    backlog.keep(batch)
                else:
                    self.forward(iter(batch))
        except MqttError as error:
            if backlog.busy:
                backlog.keep([error])
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
        self.backlog.read()
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
        recorder = gateway.recorder
        fed = recorder.mappings.known
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
                    if (
                        fed is not None
                        and len(packet.payload) > MAX_VALUE
                        and recorder.mappings.of(packet.topic)
                    ):
                        admission.refuse_long(self, packet)
                        if self.ended or self.backlog.is_unheard(packets):
                            return
                        continue
                    if packet.first & 6 and packet.packet_id not in unacked:
                        if len(unacked) >= self.quota or packet.packet_id in upstream.requests:
                            self.backlog.wait_for_quota(packet, packets)
                            return
                        unacked.add(packet.packet_id)
                    if packet.topic not in known or not plain:
                        outcome = admission.admit(self, packet)
                        if outcome is None:
                            unacked.discard(packet.packet_id)
                            if self.ended or self.backlog.is_unheard(packets):
                                return
                            continue
                        if not isinstance(outcome, bytes):
                            self.backlog.suspend(outcome, packets)
                            return
                        listed = properties.kept + outcome
                    out.append(packet.to_v5(listed))
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
                    if self.backlog.is_unheard(packets):
                        return
                else:
                    upstream.write(out)
                    out.clear()
                    waits = control_packets.handle(self, packet)
                    if waits is not None:
                        self.backlog.suspend(waits, packets)
                        return
                    if self.ended or self.backlog.is_unheard(packets):
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
        self.stamp = rules.stamp(self.session)
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
        self.backlog.free_quota()

    def send(self, data: bytes) -> None:
        """Write to the client."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def fail(self, error: MqttError) -> None:
        """End the connection because the client broke a rule."""
        end(self, Cause.PROTOCOL, error=error)

    def _open(self, packet: Packet, rest: Iterator[Packet]) -> None:
        self.connection.see(Sender.CLIENT, packet)
        # The first packet is a CONNECT, or would have been refused; what follows it is kept.
        self.connect = cast("Connect", packet)
        self.version = self.connect.version
        self.takes = PeerLimits.said_in(self.connect.properties)
        self.backlog.suspend(handshake.open_connection(self), rest)
