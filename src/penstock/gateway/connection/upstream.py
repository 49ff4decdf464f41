"""The broker's side of a connection: what the broker sends, and the way of a delivery.

    broker ──▶ data_received ──▶ deliver ─┬─ decided before ──▶ header, properties ──▶ client
                                          ├─ new ──▶ `Rules.delivery` ──▶ remembered
                                          ├─ denied ──▶ acknowledged to the broker, never sent
                                          ├─ acknowledgement ──▶ client
                                          └─ SUBACK, UNSUBACK ──▶ who asked

Rules that hold here:
- A delivery is decided when it is written to the client, under the rules of that moment,
  by the subscriptions that the broker names with the gateway's own identifiers. One that
  names none, or one that the gateway does not know, is denied.
- A denied delivery is acknowledged in the client's place: QoS 1 with PUBACK, QoS 2 with
  PUBREC and later PUBCOMP. Of one that is sent again the client may have the first half:
  it is released, or the client would take the next message of that number for a copy.
- While the definitions are stale, or the client is being opened, nothing is read (`Intake`):
  the broker keeps what it has, so that nothing is lost and nothing is shown.
- A delivery that depends on situations that are in doubt waits, and all behind it, until they
  are known or lost.
- A message of QoS 0 for which the client's queue has no room is dropped, unless the broker
  is to wait. Those of QoS 1 and 2 are not: where they fill several queues, nothing more is
  read until the client has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import boot_clock
from penstock.gateway.authorization.decision_cache import UNDECIDED, Verdicts
from penstock.gateway.connection.disconnect import FAREWELL_SECONDS, Cause, end
from penstock.gateway.connection.duplicate_filter import DuplicateFilter
from penstock.gateway.connection.intake import AWAITING_LEADER, STALE, Intake
from penstock.gateway.connection.pending_requests import PendingRequests
from penstock.gateway.connection.receive_window import ReceiveWindow
from penstock.gateway.connection.replies import within
from penstock.mqtt import (
    NO_PROPERTIES,
    V3,
    V5,
    Disconnect,
    MqttError,
    Packet,
    Pingresp,
    ProtocolError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reader,
    ReasonCode,
    Sender,
    Suback,
    Unsuback,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
)
from penstock.mqtt.control import PINGREQ
from penstock.mqtt.data_types import FIELD_LIMIT

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

_QOS: Final = 0x06
_EXACTLY_ONCE: Final = 0x04
_DUPLICATE: Final = 0x08
_PINGREQ = PINGREQ.encode(V5)
_PING_SHARE: Final = 2
_QUEUES: Final = 4
_UNDECIDABLE: Final = frozenset({STALE, AWAITING_LEADER})


class Upstream(asyncio.Protocol):
    """The connection to the broker that belongs to one client."""

    __slots__ = (
        "_duplicates",
        "_pinged",
        "_quiet",
        "_waits",
        "client",
        "denied",
        "ended",
        "intake",
        "keep_alive",
        "packet_limit",
        "reader",
        "requests",
        "spoke",
        "transport",
        "verdicts",
        "version",
        "window",
    )

    transport: asyncio.Transport

    def __init__(self, client: Downstream) -> None:
        self.client = client
        self.version = client.version
        gateway = client.gateway
        self.reader = Reader(
            Sender.SERVER, version=V5, topics=gateway.topics, properties=gateway.broker_properties
        )
        self.intake = Intake(
            self.reader, gateway.loop.create_future(), _QUEUES * gateway.limits.queue
        )
        self._waits = self.intake.reasons
        self.ended = False
        self.keep_alive = 0
        most = client.takes.receive_maximum
        self.window = ReceiveWindow(most) if most < FIELD_LIMIT else None
        self.packet_limit = client.takes.maximum_packet_size
        self.verdicts = Verdicts(gateway.rules)
        self.denied: set[int] = set()
        self.requests = PendingRequests(client.unacked, self.write)
        self.spoke = True
        self._quiet = 0
        self._pinged = 0
        self._duplicates = DuplicateFilter()

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = self.intake.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.client.gateway.limits.queue)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's connection: its broker is gone."""
        self._end(exc)
        self.requests.give_up()
        # While it opens, whoever opens it notices and tells the client.
        if self.client.open and not self.client.ended:
            self.client.gateway.counters.broker_lost()
            end(self.client, Cause.BROKER)

    def pause_writing(self) -> None:
        """Stop reading from the client while the broker does not keep up."""
        if not self.client.ended:
            self.client.hold_reading("broker")

    def resume_writing(self) -> None:
        """Read from the client again."""
        if not self.client.ended:
            self.client.release_reading("broker")

    def data_received(self, data: bytes) -> None:
        """Deal with what the broker sent."""
        gateway = self.client.gateway
        gateway.counters.bytes_out += len(data)
        self._pinged = 0
        if self._waits or self._is_stale():
            self._keep(data)
        else:
            self._read(data)

    def pause(self, reason: str) -> None:
        """Stop reading from the broker, for one of several reasons."""
        self.intake.wait(reason)

    def resume(self, reason: str) -> None:
        """Read again where no other reason is left."""
        waits = self._waits
        if reason not in waits:
            return
        waits.discard(reason)
        if self.ended or self._is_stale():
            return
        if reason in _UNDECIDABLE and self.window is not None:
            # The client may have acknowledged all it had: nothing else would set these free.
            self._release(self.window)
            if not self.window.kept_bytes:
                waits.discard("window")
        for packet in self.intake.packets():
            self.deliver([packet])
        for data in self.intake.chunks():
            self._read(data)
        self.intake.go_on()

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing is read because the client leaves too much unacknowledged."""
        return "window" in self._waits

    def _is_stale(self) -> bool:
        """Say whether nothing may be decided now; then wait until that has changed."""
        gateway = self.client.gateway
        if boot_clock() <= gateway.rules.fresh_until or not self.client.open:
            return False
        gateway.waiting.add(self)
        self.pause(STALE)
        return True

    def write(self, packets: list[bytes]) -> None:
        """Write packets to the broker at once."""
        if packets and not self.ended:
            self.spoke = True
            self.transport.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def close(self, farewell: Disconnect | None) -> None:
        """Close with these last words, or without any."""
        if self.ended:
            return
        self._end(None)
        if farewell is not None:
            self.transport.write(farewell.encode(V5))
        self.transport.close()
        self.client.gateway.loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def tick(self, seconds: int) -> bool:
        """Keep the connection alive; False says that the broker is silent for too long."""
        if not self.keep_alive:
            return True
        self._quiet = 0 if self.spoke else self._quiet + seconds
        self.spoke = False
        if self._waits:
            # Its answers are not read, so that its silence says nothing; ours would end all.
            self._pinged = 0
        elif self._pinged:
            self._pinged += seconds
            return self._pinged <= self.keep_alive
        if self._quiet >= self.keep_alive // _PING_SHARE:
            self._quiet = 0
            self._pinged = seconds
            self.transport.write(_PINGREQ)
        return True

    def forget_verdicts(self) -> None:
        """Forget what was decided."""
        self.verdicts.forget()
        # Through other subscriptions than before an equal message is no copy.
        self._duplicates = DuplicateFilter()

    # --- the way of a delivery ---

    def _end(self, error: Exception | None) -> None:
        self.ended = True
        self.intake.end(error)

    def _keep(self, data: bytes) -> None:
        try:
            self.intake.keep(data)
        except MqttError as error:
            self._fail(error)

    def _fail(self, error: MqttError) -> None:
        self.client.gateway.log.error("the broker broke a rule of MQTT", error=error)
        end(self.client, Cause.BROKER)

    def _read(self, data: bytes) -> None:
        reader = self.reader
        client = self.client
        reader.feed(data)
        # What may be too much for the client goes one by one: each shows whether there is room
        # for the next. At once is faster, but only the next batch would see that it was.
        room = client.gateway.limits.queue - client.transport.get_write_buffer_size()
        crowded = len(data) > room
        try:
            while batch := reader.packets():
                if crowded:
                    for packet in batch:
                        self.deliver([packet])
                else:
                    self.deliver(batch)
        except MqttError as error:
            self._fail(error)

    # One loop on purpose, like `Downstream.forward`.
    def deliver(self, batch: list[Packet]) -> None:  # noqa: C901, PLR0912, PLR0915
        """Pass packets on to the client."""
        if AWAITING_LEADER in self._waits:
            self.intake.put_behind(batch)
            return
        client = self.client
        gateway = client.gateway
        if client.generation != gateway.rules.generation:
            client.renew()
        session = client.session
        verdicts = self.verdicts.known
        old = self.version == V3
        duplicates = self._duplicates if old and len(session.by_number) > 1 else None
        window = self.window
        out: list[bytes] = []
        back: list[bytes] = []
        passed = 0
        packets = iter(batch)
        for packet in packets:
            if type(packet) is Publish:
                if window is not None and not window.admits(packet):
                    if window.kept_bytes > gateway.limits.queue:
                        self.pause("window")
                    continue
                key = (packet.topic, packet.properties.raw)
                listed = verdicts.get(key, UNDECIDED)
                if listed is UNDECIDED:
                    listed = self.verdicts.decide(session, packet, key)
                    if listed is UNDECIDED:
                        self._doubt(packet, packets)
                        break
                if listed is None:
                    if duplicates is not None:
                        duplicates.is_duplicate(packet)
                    self._refuse(packet, key, back)
                    continue
                if duplicates is not None:
                    if duplicates.is_duplicate(packet):
                        self._deny(packet, back)
                        continue
                    duplicates.delivered = True
                data = packet.to_v3() if old else packet.to_v5(listed)
                if len(data) > self.packet_limit:
                    gateway.counters.denied("delivery", "size")
                    self._deny(packet, back)
                    continue
                if client.blocked and not packet.first & _QOS:
                    gateway.counters.denied("delivery", "slow")
                    continue
                if window is not None:
                    window.send(packet)
                out.append(data)
                passed += 1
            elif (
                type(packet) is Puback and packet.properties is NO_PROPERTIES and not packet.reason
            ):
                client.acknowledged(packet.packet_id)
                data = encode_puback(packet.packet_id)
                if client.deferred_acks.open:
                    client.deferred_acks.hold(packet.packet_id, data)
                else:
                    out.append(data)
            else:
                self._pass_on(packet, out, back)
        if client.ended:
            return
        gateway.counters.messages_out += passed
        if out:
            client.transport.write(out[0] if len(out) == 1 else b"".join(out))
            if client.blocked:
                self._hold_back()
        if back:
            self.write(back)

    def settle(self, window: ReceiveWindow, packet: Puback | Pubrec | Pubcomp) -> None:
        """Take note of a client's answer; deliver what there is room for now."""
        window.settle(packet)
        if window.kept_bytes and not self._is_stale():
            self._release(window)
        if not window.kept_bytes:
            self.resume("window")

    def _release(self, window: ReceiveWindow) -> None:
        while AWAITING_LEADER not in self._waits and (message := window.release()) is not None:
            self.deliver([message])

    def _doubt(self, packet: Publish, behind: Iterator[Packet]) -> None:
        """Wait until the situations are known that a delivery depends on."""
        self.client.gateway.awaiting_leader.add(self)
        self.pause(AWAITING_LEADER)
        if self.window is None or not self.window.takes_back(packet):
            self.intake.put_back([packet, *behind])

    def _hold_back(self) -> None:
        """Leave to the broker what a slow client has no room for, QoS 1 and 2 included."""
        waiting = self.client.transport.get_write_buffer_size()
        if waiting > _QUEUES * self.client.gateway.limits.queue:
            self.pause("client")

    def _refuse(self, packet: Publish, key: tuple[str, bytes], back: list[bytes]) -> None:
        """Record a delivery that the rules forbid, and acknowledge it in the client's place."""
        gateway = self.client.gateway
        session = self.client.session
        why, rule = self.verdicts.name_rule(session, packet, key)
        gateway.counters.denied("delivery", why)
        gateway.denials.delivery(session, rule, "purpose" if why != "policy" else why)
        self._deny(packet, back)

    def _deny(self, packet: Publish, back: list[bytes]) -> None:
        """Acknowledge in the client's place what it must not see."""
        qos = packet.first & _QOS
        if qos == _EXACTLY_ONCE:
            if not packet.first & _DUPLICATE:
                self.denied.add(packet.packet_id)
            back.append(encode_pubrec(packet.packet_id))
        elif qos:
            back.append(encode_puback(packet.packet_id))

    def _fit(self, packet: Puback | Pubrec | Pubrel | Pubcomp) -> bytes:
        """Encode the broker's answer, without its words where the client has no room for them."""
        return within(self.client, packet, type(packet)(packet.packet_id, packet.reason))

    def _answer(self, packet: Puback | Pubrec | Pubcomp, out: list[bytes]) -> None:
        """Pass on the broker's answer, or keep it until what it is about is durable."""
        data = self._fit(packet)
        if self.client.deferred_acks.open:
            self.client.deferred_acks.hold(packet.packet_id, data)
        else:
            out.append(data)

    def _pass_on(self, packet: Packet, out: list[bytes], back: list[bytes]) -> None:
        client = self.client
        match packet:
            case Puback() | Pubcomp():
                client.acknowledged(packet.packet_id)
                self._answer(packet, out)
            case Pubrec():
                if packet.failed:
                    client.acknowledged(packet.packet_id)
                    if self.version == V3:
                        # 3.1.1 cannot be told: it will release what the broker has dropped.
                        client.refused.add(packet.packet_id)
                self._answer(packet, out)
            case Pubrel():
                if packet.packet_id in self.denied:
                    self.denied.discard(packet.packet_id)
                    back.append(encode_pubcomp(packet.packet_id))
                else:
                    out.append(self._fit(packet))
            case Suback() | Unsuback():
                self.requests.answer(packet)
                client.acknowledged(0)
            case Disconnect():
                cause = (
                    Cause.TAKEOVER
                    if packet.reason == ReasonCode.SESSION_TAKEN_OVER
                    else Cause.BROKER
                )
                self._end(None)
                self.transport.close()
                fits = len(packet.encode(V5)) <= self.packet_limit
                end(client, cause, farewell=packet if fits else Disconnect(packet.reason))
            case Pingresp():
                pass
            case _:
                raise ProtocolError(f"{packet.packet_type.name} is not expected from the broker")
