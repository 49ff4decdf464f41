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
- While the definitions are stale, or the client is being opened, nothing is read: the
  broker keeps what it has, so that nothing is lost and nothing is shown.
- A message of QoS 0 for which the client's queue has no room is dropped, unless the broker
  is to wait. Those of QoS 1 and 2 are not: where they fill several queues, nothing more is
  read until the client has caught up.
- What is remembered per topic and properties is the encoded property list for the client,
  or None where the delivery is denied; it is forgotten with every change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from penstock.gateway.answers import within
from penstock.gateway.copies import Copies
from penstock.gateway.ending import FAREWELL_SECONDS, Cause, end
from penstock.gateway.window import Window
from penstock.mqtt import (
    NO_PROPERTIES,
    V3,
    V5,
    Connack,
    Connect,
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
    ReceiveMaximumError,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
)
from penstock.mqtt.control import PINGREQ
from penstock.store.follower import boot_clock

if TYPE_CHECKING:
    from penstock.gateway.downstream import Downstream

_UNDECIDED: Final = b"\x00undecided"
_VERDICTS_LIMIT: Final = 2_048
_LONGEST: Final = 256
_QOS: Final = 0x06
_EXACTLY_ONCE: Final = 0x04
_DUPLICATE: Final = 0x08
_PINGREQ = PINGREQ.encode(V5)
_HIGHEST_ID: Final = 65_535
_PING_SHARE: Final = 2
_QUEUES: Final = 4

Answer = Suback | Unsuback


class Upstream(asyncio.Protocol):
    """The connection to the broker that belongs to one client."""

    __slots__ = (
        "_aside_bytes",
        "_copies",
        "_current",
        "_early",
        "_held",
        "_last_id",
        "_paused",
        "_pinged",
        "_quiet",
        "_reasons",
        "client",
        "connack",
        "denied",
        "ended",
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
        self.connack: asyncio.Future[Connack] = gateway.loop.create_future()
        self.ended = False
        self.keep_alive = 0
        most = client.connect.properties.receive_maximum
        self.window = Window(most) if most else None
        self.packet_limit = client.connect.properties.maximum_packet_size or 0
        self.verdicts: dict[tuple[str, bytes], bytes | None] = {}
        self.denied: set[int] = set()
        self.requests: dict[int, asyncio.Future[Answer]] = {}
        self.spoke = True
        self._quiet = 0
        self._pinged = 0
        self._last_id = 0
        self._paused: set[str] = set()
        self._held: list[bytes] = []
        self._aside_bytes = 0
        self._early: list[Packet] = []
        self._copies = Copies()
        self._current: asyncio.Future[bool] | None = None
        self._reasons: dict[tuple[str, bytes], str] = {}

    # --- the network ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.client.gateway.limits.queue)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's connection: its broker is gone."""
        self.ended = True
        if not self.connack.done():
            self.connack.set_exception(exc or ConnectionResetError("the broker closed"))
            self.connack.exception()
        if self._current is not None:
            _answer(self._current, answer=False)
        for answer in self.requests.values():
            answer.cancel()
        self.requests.clear()
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
        if self._current is not None:
            self._set_aside(data, self._current)
        elif self._paused or self._is_stale():
            self._held.append(data)
        else:
            self._read(data)

    def pause(self, reason: str) -> None:
        """Stop reading from the broker, for one of several reasons."""
        if not self._paused and not self.ended:
            self.transport.pause_reading()
        self._paused.add(reason)

    def resume(self, reason: str) -> None:
        """Read again where no other reason is left."""
        if reason not in self._paused:
            return
        self._paused.discard(reason)
        if self.ended or self._is_stale():
            return
        if reason == "stale" and self.window is not None:
            # The client may have acknowledged all it had: nothing else would set these free.
            self._release(self.window)
            if not self.window.kept_bytes:
                self._paused.discard("window")
        if self._paused:
            return
        early, self._early = self._early, []
        for packet in early:
            self.deliver([packet])
        while self._held and not self._paused and not self.ended:
            self._read(self._held.pop(0))
        if not self._paused and not self.ended:
            self.transport.resume_reading()

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing is read because the client leaves too much unacknowledged."""
        return "window" in self._paused

    def _is_stale(self) -> bool:
        """Say whether nothing may be decided now; then wait until that has changed."""
        gateway = self.client.gateway
        if boot_clock() <= gateway.rules.fresh_until or not self.client.open:
            return False
        gateway.waiting.add(self)
        self.pause("stale")
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
        self.ended = True
        if farewell is not None:
            self.transport.write(farewell.encode(V5))
        self.transport.close()
        self.client.gateway.loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def tick(self, seconds: int) -> bool:
        """Keep the connection alive; False says that the broker is silent for too long."""
        if not self.keep_alive or self._paused:
            return True
        self._quiet = 0 if self.spoke else self._quiet + seconds
        self.spoke = False
        if self._pinged:
            self._pinged += seconds
            return self._pinged <= self.keep_alive
        if self._quiet >= self.keep_alive // _PING_SHARE:
            self._quiet = 0
            self._pinged = seconds
            self.transport.write(_PINGREQ)
        return True

    def forget_verdicts(self) -> None:
        """Forget what was decided."""
        self.verdicts.clear()
        self._reasons.clear()
        # Through other subscriptions than before an equal message is no copy.
        self._copies = Copies()

    async def is_current(self) -> bool:
        """Ask the broker whether this connection, which is not open yet, is still the session's.

        What the broker sends before its answer is set aside until the client is open.
        """
        if self.ended:
            return False
        current: asyncio.Future[bool] = self.client.gateway.loop.create_future()
        self._current = current
        held, self._held = self._held, []
        for data in held:
            self._set_aside(data, current)
        self.transport.write(_PINGREQ)
        self.transport.resume_reading()
        try:
            return await current
        finally:
            self._current = None
            if not self.ended:
                self.transport.pause_reading()

    def _set_aside(self, data: bytes, current: asyncio.Future[bool]) -> None:
        self._aside_bytes += len(data)
        self.reader.feed(data)
        try:
            while batch := self.reader.packets():
                for packet in batch:
                    if isinstance(packet, Pingresp):
                        _answer(current, answer=True)
                    else:
                        self._early.append(packet)
        except MqttError as error:
            self.client.gateway.log.exception("the broker broke a rule of MQTT", error=error)
            _answer(current, answer=False)
        if self._aside_bytes > _QUEUES * self.client.gateway.limits.queue:
            _answer(current, answer=False)

    # --- what the gateway asks of the broker ---

    def open(self, connect: Connect) -> None:
        """Send the CONNECT."""
        self.transport.write(connect.encode(V5))

    async def subscribe(self, packet: Subscribe) -> Suback:
        """Send a SUBSCRIBE with an identifier of the gateway's choice, and wait for its answer."""
        packet_id = self._take_id()
        request = Subscribe(packet_id, packet.subscriptions, packet.properties)
        return cast("Suback", await self._ask(packet_id, request.encode(V5)))

    async def unsubscribe(self, packet: Unsubscribe) -> Unsuback:
        """Send an UNSUBSCRIBE, and wait for its answer."""
        packet_id = self._take_id()
        request = Unsubscribe(packet_id, packet.filters, packet.properties)
        return cast("Unsuback", await self._ask(packet_id, request.encode(V5)))

    async def _ask(self, packet_id: int, data: bytes) -> Answer:
        answer: asyncio.Future[Answer] = self.client.gateway.loop.create_future()
        self.requests[packet_id] = answer
        self.write([data])
        return await answer

    def _take_id(self) -> int:
        """Choose an identifier that neither the client nor another request uses now."""
        if len(self.client.unacked) + len(self.requests) >= _HIGHEST_ID:
            raise ReceiveMaximumError("no packet identifier is free: too much is unanswered")
        packet_id = self._last_id
        while not packet_id or packet_id in self.client.unacked or packet_id in self.requests:
            packet_id = packet_id - 1 if packet_id > 1 else _HIGHEST_ID
        self._last_id = packet_id - 1
        return packet_id

    # --- the way of a delivery ---

    def _read(self, data: bytes) -> None:
        reader = self.reader
        client = self.client
        reader.feed(data)
        # What may be too much for the client goes one by one: each shows whether there is room
        # for the next. At once is faster, but only the next batch would see that it was.
        room = client.gateway.limits.queue - client.transport.get_write_buffer_size()
        crowded = len(data) > room and client.open
        try:
            while batch := reader.packets():
                if crowded:
                    for packet in batch:
                        self.deliver([packet])
                else:
                    self.deliver(batch)
        except MqttError as error:
            self.client.gateway.log.exception("the broker broke a rule of MQTT", error=error)
            end(self.client, Cause.BROKER)

    # One loop on purpose, like `Downstream.forward`.
    def deliver(self, batch: list[Packet]) -> None:  # noqa: C901, PLR0912, PLR0915
        """Pass packets on to the client."""
        client = self.client
        gateway = client.gateway
        if client.generation != gateway.rules.generation and client.open:
            client.renew()
        verdicts = self.verdicts
        old = self.version == V3
        copies = self._copies if old and len(client.session.by_number) > 1 else None
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
                listed = verdicts.get(key, _UNDECIDED)
                if listed is _UNDECIDED:
                    listed = self._decide(packet, key)
                if listed is None:
                    if copies is not None:
                        copies.repeats(packet)
                    self._refuse(packet, key, back)
                    continue
                if copies is not None:
                    if copies.repeats(packet):
                        self._deny(packet, back)
                        continue
                    copies.delivered = True
                data = packet.to_v3() if old else packet.to_v5(listed)
                if self.packet_limit and len(data) > self.packet_limit:
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
                out.append(encode_puback(packet.packet_id))
            elif type(packet) is Connack:
                self._take_connack(packet, list(packets))
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

    def settle(self, window: Window, packet: Puback | Pubrec | Pubcomp) -> None:
        """Take note of a client's answer; deliver what there is room for now."""
        window.settle(packet)
        if window.kept_bytes and not self._is_stale():
            self._release(window)
        if not window.kept_bytes:
            self.resume("window")

    def _release(self, window: Window) -> None:
        for message in window.release():
            self.deliver([message])

    def _hold_back(self) -> None:
        """Leave to the broker what a slow client has no room for, QoS 1 and 2 included."""
        waiting = self.client.transport.get_write_buffer_size()
        if waiting > _QUEUES * self.client.gateway.limits.queue:
            self.pause("client")

    def _decide(self, packet: Publish, key: tuple[str, bytes]) -> bytes | None:
        rules = self.client.gateway.rules
        listed = rules.delivery(self.client.session, packet)
        if rules.remembers and len(key[1]) <= _LONGEST:
            if len(self.verdicts) >= _VERDICTS_LIMIT:
                self.verdicts.clear()
            self.verdicts[key] = listed
        return listed

    def _refuse(self, packet: Publish, key: tuple[str, bytes], back: list[bytes]) -> None:
        """Record a delivery that the rules forbid, and acknowledge it in the client's place."""
        gateway = self.client.gateway
        session = self.client.session
        rule = self._reasons.get(key)
        if rule is None:
            rule = gateway.rules.explain(session, packet)
            if len(key[1]) <= _LONGEST:
                if len(self._reasons) >= _VERDICTS_LIMIT:
                    self._reasons.clear()
                self._reasons[key] = rule
        gateway.counters.denied("delivery", "purpose" if rule else "unknown_subscription")
        gateway.denials.delivery(session, rule)
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

    def _take_connack(self, packet: Connack, rest: list[Packet]) -> None:
        if self.connack.done():
            raise ProtocolError("a second CONNACK")
        self.connack.set_result(packet)
        # Nothing may be delivered before the client has its own CONNACK.
        self._early = rest
        self.pause("opening")

    def _fit(self, packet: Puback | Pubrec | Pubrel | Pubcomp) -> bytes:
        """Encode the broker's answer, without its words where the client has no room for them."""
        return within(self.client, packet, type(packet)(packet.packet_id, packet.reason))

    def _pass_on(self, packet: Packet, out: list[bytes], back: list[bytes]) -> None:
        client = self.client
        match packet:
            case Puback() | Pubcomp():
                client.acknowledged(packet.packet_id)
                out.append(self._fit(packet))
            case Pubrec():
                if packet.failed:
                    client.acknowledged(packet.packet_id)
                    if self.version == V3:
                        # 3.1.1 cannot be told: it will release what the broker has dropped.
                        client.refused.add(packet.packet_id)
                out.append(self._fit(packet))
            case Pubrel():
                if packet.packet_id in self.denied:
                    self.denied.discard(packet.packet_id)
                    back.append(encode_pubcomp(packet.packet_id))
                else:
                    out.append(self._fit(packet))
            case Suback() | Unsuback():
                answer = self.requests.pop(packet.packet_id, None)
                if answer is None or answer.done():
                    raise ProtocolError("an answer to a request that was never made")
                answer.set_result(packet)
                client.acknowledged(0)
            case Disconnect():
                cause = (
                    Cause.TAKEOVER
                    if packet.reason == ReasonCode.SESSION_TAKEN_OVER
                    else Cause.BROKER
                )
                self.ended = True
                self.transport.close()
                fits = not self.packet_limit or len(packet.encode(V5)) <= self.packet_limit
                end(client, cause, farewell=packet if fits else Disconnect(packet.reason))
            case Pingresp():
                pass
            case _:
                raise ProtocolError(f"{packet.packet_type.name} is not expected from the broker")


def _answer(question: asyncio.Future[bool], *, answer: bool) -> None:
    if not question.done():
        question.set_result(answer)
