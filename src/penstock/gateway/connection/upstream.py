"""The broker's side of a connection: what the broker sends, and the way of a delivery.

    broker ──▶ data_received ─┬─ plain ──▶ `_pass_plain`, as bytes ──▶ client
                              └▶ deliver ─┬─ decided before ──▶ header, properties ──▶ client
                                          ├─ new ──▶ `DeliveryCheck.decide` ──▶ cached
                                          ├─ denied ──▶ acknowledged to the broker, never sent
                                          ├─ acknowledgement ──▶ client
                                          └─ SUBACK, UNSUBACK ──▶ who asked

Rules that hold here:
- What passes as bytes passes as the loop would pass it: in doubt a packet is not plain.
- A delivery is decided when it is written to the client, under the rules of that moment,
  by the subscriptions that the broker names with the gateway's own identifiers. One that
  names none, or one that the gateway does not know, is denied.
- A denied delivery is acknowledged in the client's place: QoS 1 with PUBACK (MQTT5 4.3.2),
  QoS 2 with PUBREC and later PUBCOMP (MQTT5 4.3.3). Of one that is sent again the client may
  have the first half: it is released, or the client would take the next message of that
  number for a copy.
- While the definitions are stale, or the client is being opened, nothing is read (`Intake`):
  the broker keeps what it has, so that nothing is lost and nothing is shown.
- A delivery that depends on situations that are not known waits, and all behind it (MQTT5 4.6),
  until they are known or lost.
- A message of QoS 0 for which the client's queue has no room is dropped, unless the broker
  is to wait. Those of QoS 1 and 2 are not: where they fill several queues, nothing more is
  read until the client has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, cast

from penstock.clock import boot_clock
from penstock.gateway.authorization.delivery_check import UNASKED, DecisionCache, DeliveryDecision
from penstock.gateway.connection.backlog import DuplicateFilter, ReceiveWindow
from penstock.gateway.connection.broker_connection import (
    AWAITING_LEADER,
    QUEUES,
    STALE,
    WINDOW,
    BrokerConnection,
)
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.context import Cause
from penstock.mqtt import (
    NO_PROPERTIES,
    PUBACK_SIZE,
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
    encode_head,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
    encode_varint,
    find_plain,
    find_puback,
)
from penstock.mqtt.data_types import FIELD_LIMIT
from penstock.telemetry import get_logger

_QOS: Final = 0x06
_EXACTLY_ONCE: Final = 0x04
_DUPLICATE: Final = 0x08
_UNDECIDABLE: Final = frozenset({STALE, AWAITING_LEADER})
_log = get_logger("gateway")


class Upstream(BrokerConnection):
    """What the broker sends for one client."""

    __slots__ = (
        "_context",
        "_duplicates",
        "client",
        "decisions",
        "denied",
        "packet_limit",
        "version",
        "window",
    )

    def __init__(self, client: ClientConnection) -> None:
        context = self._context = client.context
        reader = Reader(
            Sender.SERVER, version=V5, topics=context.topics, properties=context.broker_properties
        )
        super().__init__(context.loop, reader, context.limits.queue)
        self.client = client
        self.version = client.version
        most = client.takes.receive_maximum
        self.window = ReceiveWindow(most) if most < FIELD_LIMIT else None
        self.packet_limit = client.takes.maximum_packet_size
        self.decisions = DecisionCache(context.delivery_check)
        self.denied: set[int] = set()
        """Deliveries of QoS 2 that were denied: their PUBREL is answered here."""
        self._duplicates = DuplicateFilter()

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = self.intake.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._context.limits.queue)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's connection: its broker is gone."""
        self.mark_ended(exc)
        self.requests.give_up()
        # While it opens, whoever opens it notices and tells the client.
        if self.client.open and not self.client.ended:
            self._context.counters.broker_lost()
            self.client.end(Cause.BROKER)

    def pause_writing(self) -> None:
        """Stop reading from the client while the broker does not keep up."""
        self.client.hold_reading("broker")

    def resume_writing(self) -> None:
        """Read from the client again."""
        self.client.release_reading("broker")

    def data_received(self, data: bytes) -> None:
        """Deal with what the broker sent."""
        context = self._context
        context.counters.bytes_out += len(data)
        self._pinged = 0
        if self._waits or (boot_clock() > context.rules.fresh_until and self._is_stale()):
            try:
                self.intake.keep(data)
            except MqttError as error:
                self._fail(error)
        else:
            at = self._pass_plain(data)
            if at < len(data):
                self._read(data[at:] if at else data)

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
                waits.discard(WINDOW)
        for packet in self.intake.packets():
            self.deliver([packet])
        for data in self.intake.chunks():
            self._read(data)
        self.intake.go_on()

    def forget_decisions(self) -> None:
        """Forget what was decided."""
        self.decisions.forget()
        # Through other subscriptions than before an equal message is no copy.
        self._duplicates = DuplicateFilter()

    def _is_stale(self) -> bool:
        """Say whether nothing may be decided now; then wait until that has changed."""
        if boot_clock() <= self._context.rules.fresh_until or not self.client.open:
            return False
        self.client.registry.await_definitions(self.client)
        self.pause(STALE)
        return True

    def _fail(self, error: MqttError) -> None:
        _log.error("the broker broke a rule of MQTT", error=error)
        self.client.end(Cause.BROKER)

    # --- the way of a delivery ---

    def _read(self, data: bytes) -> None:
        reader = self.reader
        reader.feed(data)
        crowded = self._is_crowded(data)
        try:
            batch = reader.packets()
            if crowded:
                for packet in batch:
                    self.deliver([packet])
            elif batch:
                self.deliver(batch)
            if reader.refused:
                reader.packets()
        except MqttError as error:
            self._fail(error)

    def _is_crowded(self, data: bytes) -> bool:
        """Say whether what came may be too much for the client.

        Then it goes one by one: each packet shows whether there is room for the next. At once is
        faster, but only the next batch would see that it was.
        """
        room = self._context.limits.queue - self.client.transport.get_write_buffer_size()
        return len(data) > room

    # One loop on purpose, like `Downstream.forward`.
    def _pass_plain(self, data: bytes) -> int:  # noqa: C901, PLR0912, PLR0915
        """Pass plain packets on as bytes, as `deliver` would; return where the first other begins.

        Plain are deliveries of QoS 0 and 1 that were decided before, and bare acknowledgements.
        """
        client, context = self.client, self._context
        end = len(data)
        if self.reader.held or client.ended or client.deferred_acks.open:
            return 0
        if end == PUBACK_SIZE:
            # Alone, as most come: it needs no rules.
            acked = find_puback(data, 0)
            if acked:
                client.acknowledged(acked)
                self._send([data], [], 0)
                return end
            return 0
        passing = self.decisions.passing
        if (
            # Where each message is decided on anew, to look for plain ones is in vain.
            not passing
            or client.blocked
            or self.window is not None
            or client.generation != context.rules.generation
        ):
            return 0
        old, duplicates = self.version == V3, None
        if old and len(client.session.by_number) > 1:
            duplicates = self._duplicates
        out: list[bytes] = []
        back: list[bytes] = []
        passed = at = 0
        while at < end:
            parts = find_plain(data, at, V5)
            stop = at + PUBACK_SIZE if parts is None else parts[4]
            if not at and stop < end and self._is_crowded(data):
                break
            if parts is None:
                acked = find_puback(data, at)
                if not acked:
                    break
                client.acknowledged(acked)
                out.append(data[at:stop])
                at = stop
                continue
            start, middle, body, begin, _ = parts
            topic_field, raw = data[start:middle], data[body + 1 : begin]
            topic = context.topics.get(topic_field)
            listed = None if topic is None else passing.get((topic, raw))
            if listed is None:
                break
            payload = data[begin:stop]
            if old:
                head = encode_head(data[at], body - start + len(payload))
                told = b"".join((head, data[start:body], payload))
            else:
                size = encode_varint(len(listed))
                total = body - start + len(size) + len(listed) + len(payload)
                head = encode_head(data[at], total)
                told = b"".join((head, data[start:body], size, listed, payload))
            if len(told) > self.packet_limit:
                break
            if duplicates is not None:
                properties = context.broker_properties[raw]
                if duplicates.is_duplicate(data[at], topic_field, properties, payload):
                    if middle < body:
                        back.append(encode_puback(data[middle] << 8 | data[middle + 1]))
                    at = stop
                    continue
                duplicates.delivered = True
            out.append(told)
            passed += 1
            at = stop
        self._send(out, back, passed)
        return at

    # One loop on purpose, like `Downstream.forward`.
    def deliver(self, batch: list[Packet]) -> None:  # noqa: C901, PLR0912, PLR0915
        """Pass packets on to the client."""
        if AWAITING_LEADER in self._waits:
            self.intake.put_behind(batch)
            return
        client = self.client
        context = self._context
        if client.generation != context.rules.generation:
            client.renew()
        session = client.session
        passing = self.decisions.passing
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
                    if window.kept_bytes > context.limits.queue:
                        self.pause(WINDOW)
                    continue
                key = (packet.topic, packet.properties.raw)
                listed = passing.get(key)
                if listed is None:
                    decision = self.decisions.decide(session, packet, key)
                    if decision.awaiting_leader:
                        self._await_leader(packet, packets)
                        break
                    listed = decision.properties
                    if listed is None:
                        if duplicates is not None:
                            duplicates.is_copy(packet)
                        self._refuse(packet, decision, back)
                        continue
                    if decision.sent is not None:
                        packet = decision.sent  # noqa: PLW2901
                if duplicates is not None:
                    if duplicates.is_copy(packet):
                        self._deny(packet, back)
                        continue
                    duplicates.delivered = True
                data = packet.to_v3() if old else packet.to_v5(listed)
                if len(data) > self.packet_limit:
                    context.counters.denied("delivery", "size")
                    self._deny(packet, back)
                    continue
                if client.blocked and not packet.first & _QOS:
                    context.counters.denied("delivery", "slow")
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
        if not client.ended:
            self._send(out, back, passed)

    def _send(self, out: list[bytes], back: list[bytes], passed: int) -> None:
        """Write to the client, and what the broker is told in its place."""
        self._context.counters.messages_out += passed
        client = self.client
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
            self.resume(WINDOW)

    def _release(self, window: ReceiveWindow) -> None:
        while AWAITING_LEADER not in self._waits and (message := window.release()) is not None:
            self.deliver([message])

    def _await_leader(self, packet: Publish, behind: Iterator[Packet]) -> None:
        """Wait until the situations are known that a delivery depends on."""
        self.client.registry.await_leader(self.client)
        self.pause(AWAITING_LEADER)
        if self.window is None or not self.window.takes_back(packet):
            self.intake.put_back([packet, *behind])

    def _hold_back(self) -> None:
        """Leave to the broker what a slow client has no room for, QoS 1 and 2 included."""
        waiting = self.client.transport.get_write_buffer_size()
        if waiting > QUEUES * self._context.limits.queue:
            self.pause("client")

    def _refuse(self, packet: Publish, decision: DeliveryDecision, back: list[bytes]) -> None:
        """Record a delivery that the rules forbid, and acknowledge it in the client's place."""
        context = self._context
        refusal = decision.refusal
        context.counters.denied("delivery", refusal.why)
        if refusal not in UNASKED:
            # Who subscribes to everything did not ask for answers: nothing was refused to them.
            context.denials.delivery(self.client.session, refusal.rule, refusal.reason)
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
        return self.client.fit(packet, type(packet)(packet.packet_id, packet.reason))

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
                        # MQTT3.1.1 3.5: 3.1.1 cannot be told; it will release what was dropped.
                        client.refuse(packet.packet_id)
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
                self.mark_ended(None)
                self.transport.close()
                fits = len(packet.encode(V5)) <= self.packet_limit
                client.end(cause, farewell=packet if fits else Disconnect(packet.reason))
            case Pingresp():
                self.take_pong()
            case _:
                raise ProtocolError(f"{packet.packet_type.name} is not expected from the broker")
