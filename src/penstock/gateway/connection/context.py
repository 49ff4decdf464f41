"""What all connections of one gateway have in common: collaborators, answers, and how they end.

    cause          to the client (MQTT 5)       to the broker
    CLIENT         nothing                      its DISCONNECT, as it said it
    LOST           nothing                      closed without a word: the will fires
    PROTOCOL       DISCONNECT with the reason   closed without a word
    KEEP_ALIVE     DISCONNECT 0x8D              closed without a word
    SLOW           DISCONNECT 0x97              closed without a word
    DENIED         DISCONNECT 0x87              closed without a word
    REVOKED        DISCONNECT 0x87              DISCONNECT: the will is not sent
    DRAIN          DISCONNECT 0x8B              closed without a word
    TAKEOVER       DISCONNECT 0x8E              closed without a word (the broker knows)
    BROKER         the broker's reason, 0x8B    nothing

Rules that hold here:
- The service builds the context once; nothing in it is exchanged while the gateway runs.
- What only one handler needs, that handler gets as an argument of its own.
- A server of MQTT 5 says why it closes (MQTT5 4.13); one of 3.1.1 has no words for it: only
  clients send DISCONNECT (MQTT3.1.1 3.14).
- A client hears that its message has arrived when the step that it led to as an event, and
  its record in the event log where that was asked for, would survive a crash of this gateway.
- Acknowledgements keep their order (MQTT5 4.6): what comes after one that waits, waits.
- Where something will not be durable the connection ends, so that the client sends again
  (MQTT5 4.4).
- MQTT 5 is told the reason, 0x87 or what fits better, with a text where the client wants
  texts (MQTT5 3.1.2.11.7). 3.1.1 gets an ordinary acknowledgement or the end of its
  connection, as configured (MQTT3.1.1 3.3.5). With QoS 0 there is no answer.
- No answer is larger than the largest packet that the client takes (MQTT5 3.1.2.11.4); the text
  of a DISCONNECT is left out first (MQTT5 3.14.2.2.3).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from penstock.errors import UsageError
from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.broker import RESERVED
from penstock.gateway.counters import Counters
from penstock.gateway.limits import Arrivals, Limits
from penstock.gateway.publications import Journal
from penstock.gateway.publishing.lanes import Lanes
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Connack,
    Disconnect,
    MqttError,
    PeerLimits,
    Properties,
    PropertyLists,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    Sender,
    TopicNames,
    UnsupportedVersionError,
    encode_puback,
    encode_pubrec,
)

FAREWELL_SECONDS = 5.0
"""After this a transport that cannot send the last words is cut off."""


class Cause(StrEnum):
    """What ended a connection."""

    CLIENT = "client"
    LOST = "lost"
    BROKER = "broker"
    TAKEOVER = "takeover"
    PROTOCOL = "protocol"
    KEEP_ALIVE = "keep_alive"
    SLOW = "slow"
    DRAIN = "drain"
    DENIED = "denied"
    REVOKED = "revoked"


_REASONS = {
    Cause.BROKER: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.TAKEOVER: ReasonCode.SESSION_TAKEN_OVER,
    Cause.KEEP_ALIVE: ReasonCode.KEEP_ALIVE_TIMEOUT,
    Cause.SLOW: ReasonCode.QUOTA_EXCEEDED,
    Cause.DRAIN: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.DENIED: ReasonCode.NOT_AUTHORIZED,
    Cause.REVOKED: ReasonCode.NOT_AUTHORIZED,
}


def make_disconnect(
    cause: Cause, error: MqttError | None, *, texts: bool, largest: int
) -> Disconnect:
    """Make the DISCONNECT for a client, with a text where it wants texts and has room for it."""
    reason = int(error.reason if error is not None else _REASONS[cause])
    if error is None or not texts:
        return Disconnect(reason)
    told = Disconnect(reason, Properties(reason_string=error.message))
    return told if len(told.encode(V5)) <= largest else Disconnect(reason)


def encode_refusal(version: int | None, error: MqttError) -> bytes:
    """Encode the CONNACK for a CONNECT that could not be read; nothing: closed unanswered."""
    if isinstance(error, UnsupportedVersionError):
        return error.connack()
    if version is None:
        return b""
    # MQTT3.1.1 3.2.2.3: of its return codes only that for a bad client identifier fits.
    if version != V5 and error.reason is not ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
        return b""
    return Connack(int(error.reason)).encode(version)


def _client_properties() -> PropertyLists:
    return PropertyLists(Sender.CLIENT, reserved=RESERVED)


def _broker_properties() -> PropertyLists:
    return PropertyLists(Sender.SERVER, reserved=RESERVED)


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The collaborators of every connection."""

    loop: asyncio.AbstractEventLoop
    arrivals: Arrivals
    rules: Rules
    delivery_check: DeliveryCheck
    limits: Limits
    counters: Counters
    denials: Denials
    recorder: Recorder
    wills: Wills
    lanes: Lanes
    close_denied: bool = False
    """Whether a client of 3.1.1 whose message is denied is closed, instead of acknowledged."""
    topics: TopicNames = field(default_factory=TopicNames)
    """Topic names that were checked before, shared by all readers."""
    client_properties: PropertyLists = field(default_factory=_client_properties)
    broker_properties: PropertyLists = field(default_factory=_broker_properties)


class AckReceiver(Protocol):
    """The client that acknowledgements are for."""

    def send(self, data: bytes) -> None:
        """Write to the client."""

    def end(self, cause: Cause) -> None:
        """End its connection."""


class DeferredAcks:
    """What one client is not told yet."""

    __slots__ = ("_client", "_waiting", "open")

    def __init__(self, client: AckReceiver) -> None:
        self._client = client
        self.open: dict[int, int] = {}
        """For how many things the answer to a packet waits; empty: nothing is held."""
        self._waiting: deque[tuple[int, bytes]] | None = None

    def expect(self, journal: Journal, packet_id: int, ticket: int) -> None:
        """Hold the answer to a packet back until its ticket is durable, too."""
        if ticket <= journal.durable:
            return
        self.open[packet_id] = self.open.get(packet_id, 0) + 1

        def settle(durable: bool) -> None:  # noqa: FBT001
            self.open[packet_id] -= 1
            if not self.open[packet_id]:
                del self.open[packet_id]
            if not durable:
                self._client.end(Cause.BROKER)
            self._release()

        journal.wait(ticket, settle)

    def hold(self, packet_id: int, data: bytes) -> None:
        """Keep an answer of the broker, and all that follow it, for later."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((packet_id, data))
        self._release()

    def _release(self) -> None:
        out: list[bytes] = []
        waiting = self._waiting
        while waiting and waiting[0][0] not in self.open:
            out.append(waiting.popleft()[1])
        if not waiting:
            self._waiting = None
        if out:
            self._client.send(b"".join(out))


_QOS = 0x06
_AT_LEAST_ONCE = 0x02


class Answer(Protocol):
    """A packet that can be encoded."""

    def encode(self, version: int, /) -> bytes:
        """Encode for a protocol version."""
        ...


class ClientReplies:
    """The side of a client that is written to."""

    __slots__ = ("_refused", "context", "problems", "takes", "transport", "version")

    transport: asyncio.Transport
    takes: PeerLimits

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self.version = 0
        self.problems = True
        """Whether the client wants texts."""
        self._refused: set[int] | None = None
        """Messages of QoS 2 that were answered here: so is their PUBREL."""

    @abstractmethod
    def end(self, cause: Cause) -> None:
        """End the connection."""

    def send(self, data: bytes) -> None:
        """Write to the client."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def fit(self, told: Answer, short: Answer) -> bytes:
        """Encode an answer, or its short form where the client takes no packet of that size."""
        data = told.encode(self.version)
        return data if len(data) <= self.takes.maximum_packet_size else short.encode(self.version)

    def deny(self, packet: Publish, why: str, text: str, reason: ReasonCode) -> None:
        """Answer a message that does not go to the broker."""
        self.context.counters.denied("publish", why)
        qos = packet.first & _QOS
        if self.version == V5:
            if qos:
                kind = Puback if qos == _AT_LEAST_ONCE else Pubrec
                properties = Properties(reason_string=text) if self.problems else NO_PROPERTIES
                told = kind(packet.packet_id, int(reason), properties)
                self.send(self.fit(told, kind(packet.packet_id, int(reason))))
        elif self.context.close_denied:
            self.end(Cause.DENIED)
        else:
            self.confirm(packet)

    def confirm(self, packet: Publish) -> None:
        """Acknowledge a message that was dealt with here."""
        qos = packet.first & _QOS
        if qos == _AT_LEAST_ONCE:
            self.send(encode_puback(packet.packet_id))
        elif qos:
            self.refuse(packet.packet_id)
            self.send(encode_pubrec(packet.packet_id))

    def refuse(self, packet_id: int) -> None:
        """Take note that the PUBREL of a message of QoS 2 is to be answered here."""
        if self._refused is None:
            self._refused = set()
        self._refused.add(packet_id)

    def completes_refused(self, packet_id: int) -> bool:
        """Say whether a PUBREL is of a message that was answered here; it is so once."""
        if self._refused is None or packet_id not in self._refused:
            return False
        self._refused.discard(packet_id)
        return True

    def answer(self, packet: Publish, payload: bytes) -> None:
        """Answer a question, on the topic that the client named for that."""
        asked = packet.properties
        topic = asked.response_topic or packet.topic
        properties = Properties(correlation_data=asked.correlation_data)
        data = Publish.of(topic, payload, properties=properties).encode(self.version)
        most = min(self.takes.maximum_packet_size, self.context.limits.packet)
        if len(data) > most:
            raise UsageError(
                f"the answer has {len(data)} bytes, more than fit into a packet of {most}",
                fix="ask for less, or raise the largest packet",
            )
        self.send(data)
